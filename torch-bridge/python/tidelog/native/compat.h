// What differs between the versions of torch and cannot be asked for by name, which the rest does where it uses it. And
// what those of the C and C++ libraries lack that a prebuilt module may meet.
#pragma once

#include <sys/syscall.h>
#include <torch/version.h>
#include <unistd.h>

#include <sstream>
#include <string>

namespace tidelog {

// Those whose engine of autograd is known: when it adds gradients up in place, and what it holds meanwhile. It is no
// interface of torch's, so in a version that was not tried sums are out of place where tensors move, and
// `stats()["dispatch"]` says so.
constexpr bool knows_engine(int major, int minor) { return major == 2 && minor >= 10 && minor <= 15; }

// As `gettid` of glibc 2.30.
inline pid_t thread_of_kernel() { return static_cast<pid_t>(syscall(SYS_gettid)); }

}  // namespace tidelog

// A prebuilt module is for glibc 2.28, and the libstdc++ that is as old.
#if defined(TIDELOG_PREBUILT) && defined(__GLIBCXX__)
#if __has_include(<sys/single_threaded.h>)
// Of glibc 2.32: whether counters of references need not be atomic, by which libstdc++'s templates ask. They are here.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
#endif
// Of libstdc++ 11.
template std::string std::basic_stringbuf<char>::str() const&;
template std::string std::basic_stringbuf<char>::str() &&;
#endif
