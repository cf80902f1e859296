// Symbols that a prebuilt module needs of the C and C++ libraries, where those that it meets lack it.
#pragma once

#include <sstream>
#include <string>

// A prebuilt module is for glibc 2.28, and the libstdc++ that is as old.
#if defined(TIDELOG_PREBUILT) && defined(__GLIBCXX__)
#if __has_include(<sys/single_threaded.h>)
// Symbol of glibc 2.32: whether counters of references need not be atomic, by which libstdc++'s templates ask. They are
// here.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
#endif
// Symbol of libstdc++ 11.
template std::string std::basic_stringbuf<char>::str() const&;
template std::string std::basic_stringbuf<char>::str() &&;
#endif
