//! The conformance suite over spdk without NVMe hardware: SPDK's own target program serves two files over TCP on
//! the loopback, and over vfio-user. Where that cannot be, one line says why.

#[cfg(feature = "spdk")]
mod processes;
#[cfg(feature = "spdk")]
mod rows;

#[cfg(not(feature = "spdk"))]
fn main() {
    println!(
        "SKIPPED spdk: built without the feature spdk, which needs an installed SPDK (make test-spdk)"
    );
}

#[cfg(feature = "spdk")]
fn main() -> std::process::ExitCode {
    processes::other_process().unwrap_or_else(rows::run)
}
