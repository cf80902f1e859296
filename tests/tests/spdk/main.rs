//! The conformance suite over spdk without NVMe hardware: SPDK's own target program serves two
//! files over TCP on the loopback, and over vfio-user. Where that cannot be, one line says why;
//! with REQUIRE=spdk it is a failure.

#[cfg(feature = "spdk")]
mod attach;
#[cfg(feature = "spdk")]
mod hang;
#[cfg(feature = "spdk")]
mod hosts;
#[cfg(feature = "spdk")]
mod limits;
#[cfg(feature = "spdk")]
mod processes;
#[cfg(feature = "spdk")]
mod reconnect;
#[cfg(feature = "spdk")]
mod rows;

#[cfg(not(feature = "spdk"))]
fn main() -> std::process::ExitCode {
    skip("built without the feature spdk, which needs an installed SPDK (make test-spdk)")
}

/// Says why nothing runs, which is a failure where it has to.
fn skip(why: &str) -> std::process::ExitCode {
    println!("SKIPPED spdk: {why}");
    let required = std::env::var("REQUIRE").is_ok_and(|it| it == "spdk");
    u8::from(required).into()
}

#[cfg(feature = "spdk")]
fn main() -> std::process::ExitCode {
    processes::other_process().unwrap_or_else(rows::run)
}
