// CRC32C (Castagnoli, reflected) of each unit of a run of bytes: one block for each unit, THREADS threads to it.
//
// Every thread takes the CRC of its own segment, beginning from zero. The CRC of a whole is the sum (exclusive or) of its
// segments' CRCs, each moved past the bytes that follow it: multiplied by x^(8 * bytes) modulo the polynomial. The
// ones that CRC32C begins with are moved past the whole unit in the same way.
//
// `mirror.rs` is the same algorithm on the host, and is what the tests without a GPU hold against the `crc32c` crate.

#define POLYNOMIAL 0x82F63B78u
#define ONE 0x80000000u
#define THREADS 256u

// The product of two polynomials; the highest bit is the coefficient of x^0.
__device__ unsigned multiply(unsigned a, unsigned b) {
    unsigned product = 0;
#pragma unroll 1
    for (unsigned bit = ONE; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ ((b & 1u) ? POLYNOMIAL : 0u);
    }
    return product;
}

// x^(8 * bytes).
__device__ unsigned past(unsigned bytes) {
    unsigned power = ONE, square = ONE >> 8;
#pragma unroll 1
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1u) power = multiply(power, square);
        square = multiply(square, square);
    }
    return power;
}

extern "C" __global__ void crc32c_units(const unsigned char *data, unsigned long long length, unsigned unit, unsigned *out) {
    __shared__ unsigned table[256];
    __shared__ unsigned sums[THREADS];
    unsigned entry = threadIdx.x;
    for (int bit = 0; bit < 8; bit++) entry = (entry >> 1) ^ ((entry & 1u) ? POLYNOMIAL : 0u);
    table[threadIdx.x] = entry;
    __syncthreads();

    unsigned long long first = (unsigned long long)blockIdx.x * unit;
    unsigned size = (unsigned)(length - first < unit ? length - first : unit);
    unsigned segment = (size + THREADS - 1) / THREADS;
    unsigned begin = min(threadIdx.x * segment, size);
    unsigned end = min(begin + segment, size);
    unsigned crc = 0;
    for (unsigned at = begin; at < end; at++) crc = (crc >> 8) ^ table[(crc ^ data[first + at]) & 0xffu];
    sums[threadIdx.x] = multiply(crc, past(size - end));
    __syncthreads();

    for (unsigned half = THREADS / 2; half != 0; half >>= 1) {
        if (threadIdx.x < half) sums[threadIdx.x] ^= sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = ~(sums[0] ^ multiply(0xFFFFFFFFu, past(size)));
}
