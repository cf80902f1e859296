// CRC32C (Castagnoli, reflected) of each unit of a run of bytes, in as many parts as the launch says: a block for each
// part, and the exclusive or of what a unit's blocks answer is its checksum.
//
// A unit is rows of ROW bytes, which are counted from its end; each thread has one vector of each row, so that a warp
// reads what lies together. A thread keeps four words. From row to row each is moved past a row, by four tables of 256
// entries in shared memory, and the row's word is added. In the end every word is moved past what follows it in the
// unit, and all are added: a checksum is linear. Moving past n bytes is multiplying by x^(8n) modulo the polynomial.
//
// Zeros before the first byte change nothing, and those behind the last are taken back by multiplying by x^(-8n). So
// rows begin and end where vectors are aligned, whatever the unit's address and length. The ones that CRC32C begins
// with are added to the first four bytes, also where there are fewer.
//
// An estimate, not a measurement: a lookup for each byte, and of a warp's 32 lookups 3.2 meet in the fullest bank, so 10
// bytes in a cycle of a multiprocessor; with 100 of them at 1.4 GHz 1.4 TB/s, so 40 GB/s take 3 % of such a GPU. 256 KiB
// alone are 16 blocks of 8 rows: 1,600 cycles of lookups, and some 2,500 that wait for memory, tables and the end. That
// is 3 us, and with a launch 5: 50 GB/s of one such unit after the other in a stream, as much as four SSDs of PCIe 5.

constexpr unsigned POLYNOMIAL = 0x82F63B78u, ONE = 0x80000000u;
constexpr unsigned THREADS = 128, WARP = 32, VECTOR = 16, ROW = THREADS * VECTOR;
// Rows that are read at once, so that many reads are on their way.
constexpr unsigned BATCH = 8;
// Least size that the kernel reads: shorter data counts as this long, with zeros behind its bytes, so that there is
// room for the ones.
constexpr unsigned SHORTEST = 4;

__device__ constexpr unsigned times_x(unsigned a) { return (a >> 1) ^ ((a & 1u) ? POLYNOMIAL : 0u); }

__device__ constexpr unsigned over_x(unsigned a) { return (a & ONE) ? (a ^ POLYNOMIAL) << 1 | 1u : a << 1; }

// The product of two polynomials; the highest bit is the coefficient of x^0.
__device__ constexpr unsigned multiply(unsigned a, unsigned b) {
    unsigned product = 0;
#pragma unroll
    for (int bit = 31; bit >= 0; bit--) {
        product ^= (a >> bit & 1u) ? b : 0u;
        b = times_x(b);
    }
    return product;
}

// x^(8 * bytes).
__device__ constexpr unsigned past(unsigned long long bytes) {
    unsigned power = ONE, square = ONE >> 8;
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1u) power = multiply(power, square);
        square = multiply(square, square);
    }
    return power;
}

// Powers that a block needs, made when this is compiled.
struct alignas(16) Powers {
    // For each byte of a word, and each value of it: that, moved past a row.
    unsigned byte_past_row[4][256];
    // For each thread: past the last word of its vector, and the vectors of the threads behind it.
    unsigned past_vectors[THREADS];
    // For each digit of a number of rows, to the base 256: past so many.
    unsigned past_rows[3][256];
    // Back by so many bytes.
    unsigned back[VECTOR + SHORTEST - 1];
};

__device__ constexpr Powers powers() {
    Powers made = {};
    unsigned bit_past_row = past(ROW);
    for (int bit = 31; bit >= 0; bit--) {
        made.byte_past_row[bit / 8][1u << bit % 8] = bit_past_row;
        bit_past_row = times_x(bit_past_row);
    }
    for (int byte = 0; byte < 4; byte++) {
        unsigned *table = made.byte_past_row[byte];
        for (unsigned value = 1; value < 256; value++)
            table[value] = table[value & (value - 1)] ^ table[value & (0u - value)];
    }
    unsigned weight = past(sizeof(unsigned));
    for (int thread = THREADS - 1; thread >= 0; thread--) {
        made.past_vectors[thread] = weight;
        weight = multiply(weight, past(VECTOR));
    }
    unsigned step = past(ROW);
    for (int digit = 0; digit < 3; digit++) {
        unsigned power = ONE;
        for (int value = 0; value < 256; value++) {
            made.past_rows[digit][value] = power;
            power = multiply(power, step);
        }
        step = power;
    }
    unsigned power = ONE;
    for (unsigned &back : made.back) {
        back = power;
        for (int bit = 0; bit < 8; bit++) power = over_x(power);
    }
    return made;
}

__device__ const Powers POWERS = powers();

// One unit; positions are bytes from its first on, and may lie before it or behind it.
struct Unit {
    const unsigned char *bytes;
    unsigned size;

    // True if whoever reads from `begin` to `end` reads the unit's bytes as they are, and no others.
    __device__ bool is_plain(long long begin, long long end) const { return begin >= SHORTEST && end <= size; }

    __device__ uint4 plain_at(long long at) const { return *reinterpret_cast<const uint4 *>(bytes + at); }

    __device__ unsigned byte_at(long long at) const {
        unsigned byte = at >= 0 && at < size ? bytes[at] : 0u;
        return at >= 0 && at < SHORTEST ? byte ^ 0xffu : byte;
    }

    __device__ unsigned word_at(long long at) const {
        return byte_at(at) | byte_at(at + 1) << 8 | byte_at(at + 2) << 16 | byte_at(at + 3) << 24;
    }

    // A vector of a row at an edge, byte by byte where it must be; zeros stand for what is no part of the unit.
    __device__ __noinline__ uint4 edge_at(long long at) const {
        if (is_plain(at, at + VECTOR)) return plain_at(at);
        return make_uint4(word_at(at), word_at(at + 4), word_at(at + 8), word_at(at + 12));
    }
};

__device__ unsigned word_past_row(const unsigned (*tables)[256], unsigned word) {
    unsigned low = tables[0][word & 0xffu] ^ tables[1][word >> 8 & 0xffu];
    return low ^ tables[2][word >> 16 & 0xffu] ^ tables[3][word >> 24];
}

// Shifts the words past a row, and adds the words of the next row.
__device__ void add_row(const unsigned (*tables)[256], uint4 &words, uint4 next) {
    words.x = word_past_row(tables, words.x) ^ next.x;
    words.y = word_past_row(tables, words.y) ^ next.y;
    words.z = word_past_row(tables, words.z) ^ next.z;
    words.w = word_past_row(tables, words.w) ^ next.w;
}

// Reads what is left of the rows from `row` on, a batch at most.
__device__ void read_rows(uint4 (&ahead)[BATCH], const Unit &unit, long long row, unsigned left) {
#pragma unroll
    for (unsigned next = 0; next < BATCH; next++) {
        if (next >= left) break;
        long long begin = row + next * ROW, at = begin + threadIdx.x * VECTOR;
        ahead[next] = unit.is_plain(begin, begin + ROW) ? unit.plain_at(at) : unit.edge_at(at);
    }
}

// Adds rows of words.
__device__ void add_rows(const unsigned (*tables)[256], uint4 &words, const uint4 (&ahead)[BATCH], unsigned left) {
#pragma unroll
    for (unsigned next = 0; next < BATCH; next++)
        if (next < left) add_row(tables, words, ahead[next]);
}

__device__ void copy_tables(unsigned (*tables)[256]) {
    auto *to = reinterpret_cast<uint4 *>(tables);
    const auto *from = reinterpret_cast<const uint4 *>(POWERS.byte_past_row);
#pragma unroll
    for (unsigned at = 0; at < sizeof POWERS.byte_past_row / VECTOR; at += THREADS)
        to[at + threadIdx.x] = from[at + threadIdx.x];
}

// Four words that follow each other as one word in the place of the last.
__device__ unsigned one_word(uint4 words) {
    constexpr unsigned past_word = past(sizeof(unsigned));
    return multiply(multiply(multiply(words.x, past_word) ^ words.y, past_word) ^ words.z, past_word) ^ words.w;
}

// Returns the weight of a place past the rest of a row behind this thread's vector, and `rows`, and back by `zeros`
// bytes.
__device__ unsigned weight_of(unsigned rows, unsigned zeros) {
    unsigned weight = POWERS.past_vectors[threadIdx.x];
#pragma unroll 1
    for (int digit = 0; rows != 0; digit++, rows >>= 8)
        if (rows & 0xffu) weight = multiply(weight, POWERS.past_rows[digit][rows & 0xffu]);
    return zeros == 0 ? weight : multiply(weight, POWERS.back[zeros]);
}

// The sum over the block, for its first thread.
__device__ unsigned block_sum(unsigned sum) {
    __shared__ unsigned sums[THREADS / WARP];
    for (unsigned distance = WARP / 2; distance != 0; distance /= 2) sum ^= __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    unsigned all = 0;
    for (unsigned of_warp : sums) all ^= of_warp;
    return all;
}

// `out` has a word for each block; there are `parts` of them for each unit.
extern "C" __global__ void __launch_bounds__(THREADS)
crc32c_units(const unsigned char *data, unsigned long long length, unsigned unit_size, unsigned parts, unsigned *out) {
    alignas(VECTOR) __shared__ unsigned tables[4][256];

    unsigned long long first = static_cast<unsigned long long>(blockIdx.x / parts) * unit_size;
    const Unit unit = {data + first, static_cast<unsigned>(length - first < unit_size ? length - first : unit_size)};
    // Where the last row ends: a place where vectors are aligned.
    long long stop = unit.size < SHORTEST ? SHORTEST : unit.size;
    stop += -reinterpret_cast<unsigned long long>(unit.bytes + stop) % VECTOR;
    unsigned zeros = static_cast<unsigned>(stop - unit.size);

    // The block's rows, and those behind them.
    unsigned rows = static_cast<unsigned>((stop + ROW - 1) / ROW), rows_of_part = (rows + parts - 1) / parts;
    unsigned parts_behind = parts - 1 - blockIdx.x % parts;
    unsigned rows_behind = min(parts_behind * rows_of_part, rows);
    unsigned left = min(rows_of_part, rows - rows_behind);
    long long row = stop - static_cast<long long>(rows_behind + left) * ROW;

    uint4 words = {0, 0, 0, 0}, ahead[BATCH];
    read_rows(ahead, unit, row, left);
    // What does not need them, while they are on their way.
    copy_tables(tables);
    unsigned weight = weight_of(rows_behind, zeros);
    __syncthreads();
    while (left != 0) {
        add_rows(tables, words, ahead, left);
        left -= min(left, BATCH);
        row += BATCH * ROW;
        read_rows(ahead, unit, row, left);
    }
    unsigned sum = block_sum(multiply(one_word(words), weight));
    if (threadIdx.x == 0) out[blockIdx.x] = parts_behind == 0 ? ~sum : sum;
}
