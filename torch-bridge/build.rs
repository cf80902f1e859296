//! The library's name for the dynamic linker: programs that were linked with it find any later one
//! that has the same first version number that counts.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtidelog.so.0");
}
