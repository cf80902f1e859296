//! Finds SPDK, says how to link it, and makes the bindings. Does nothing without the feature
//! `native`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "native")]
    native::build();
}

#[cfg(feature = "native")]
#[path = "build/find.rs"]
mod find;

#[cfg(feature = "native")]
mod native {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::find::{InstalledSpdk, PkgConfig};

    /// SPDK's NVMe driver, its environment, and the sockets of NVMe over TCP.
    const PACKAGES: [&str; 3] = ["spdk_nvme", "spdk_env_dpdk", "spdk_sock_modules"];
    /// System libraries that SPDK uses; the package has no library of its own.
    const SYSTEM: &str = "spdk_syslibs";

    pub(super) fn build() {
        for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "TIDELOG_SPDK_LINK"]
        {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        println!("cargo:rerun-if-changed=build/find.rs");
        if let Err(why) = build_with(&PkgConfig::default()) {
            // cargo shows the last lines of a build script that fails; a panic's backtrace would
            // hide the reason.
            eprintln!("\ntidelog-spdk-sys: {why}\n");
            std::process::exit(1);
        }
    }

    fn build_with(pkg_config: &PkgConfig) -> Result<(), String> {
        let InstalledSpdk { version, header } = pkg_config.find(PACKAGES[0])?;
        println!("cargo:rustc-env=TIDELOG_SPDK_VERSION={version}");
        // Where SPDK is replaced in its place, all of this is done again. Bindgen names the other
        // headers.
        println!("cargo:rerun-if-changed={}", header.display());
        link(pkg_config)?;
        compile(pkg_config)?;
        bind(pkg_config)
    }

    /// Compiles the code that keeps SPDK from doing things to the whole process. Linked behind
    /// SPDK's archives, which its constructors are to run after.
    fn compile(pkg_config: &PkgConfig) -> Result<(), String> {
        const NAME: &str = "tidelog_spdk_process";
        let flags = pkg_config.ask(&["--cflags", PACKAGES[0]])?;
        for file in ["src/process.c", "src/process.h"] {
            println!("cargo:rerun-if-changed={file}");
        }
        let mut compiler = cc::Build::new();
        compiler.file("src/process.c").flags(flags.split_whitespace()).cargo_metadata(false);
        compiler.try_compile(NAME).map_err(|error| format!("cannot compile process.c: {error}"))?;
        let out = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
        println!("cargo:rustc-link-search=native={out}");
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={NAME}");
        Ok(())
    }

    // -- linking it
    // ------------------------------------------------------------------------------------------

    /// Kind of a pkg-config argument.
    enum Word<'a> {
        Directory(&'a str),
        Library(&'a str),
        /// An archive by its path.
        Archive(&'a Path),
        Other,
    }

    fn read_word(word: &str) -> Word<'_> {
        if let Some(directory) = word.strip_prefix("-L") {
            return Word::Directory(directory);
        }
        match word.strip_prefix("-l") {
            Some(name) => {
                // DPDK names some archives as files: -l:librte_bus_pci.a.
                let name = name.strip_prefix(':').unwrap_or(name);
                let name = name.strip_prefix("lib").filter(|_| name.contains('.')).unwrap_or(name);
                Word::Library(name.strip_suffix(".a").unwrap_or(name))
            }
            None if word.starts_with('/') => Word::Archive(Path::new(word)),
            None => Word::Other,
        }
    }

    /// Transports, sockets, buses and memory pools are registered by constructors, which nothing
    /// refers to: of an archive the linker must take everything.
    fn link(pkg_config: &PkgConfig) -> Result<(), String> {
        let mut query = vec!["--libs", "--static"];
        query.extend(PACKAGES);
        let found = pkg_config.ask(&query)?;
        let system = pkg_config.ask(&["--libs", "--static", SYSTEM])?;
        let words: Vec<Word<'_>> =
            found.split_whitespace().chain(system.split_whitespace()).map(read_word).collect();
        let mut directories: Vec<&str> = Vec::new();
        let mut libraries: Vec<&str> = Vec::new();
        let mut archives = Vec::new();
        for word in words {
            match word {
                Word::Directory(it) if !directories.contains(&it) => directories.push(it),
                Word::Library(it) if !libraries.contains(&it) => libraries.push(it),
                Word::Archive(path) => archives.push(path),
                _ => {}
            }
        }
        for path in archives {
            let name = path.file_stem().and_then(|it| it.to_str()?.strip_prefix("lib"));
            if let (Some(directory), Some(name)) = (path.parent().and_then(Path::to_str), name) {
                // An installed SPDK still names the place where it was built; its own libraries
                // come first.
                directories.push(directory);
                libraries.push(name);
            }
        }
        for directory in &directories {
            println!("cargo:rustc-link-search=native={directory}");
        }
        check_archives(&directories)?;
        for library in libraries {
            let registers = library.starts_with("spdk_") || library.starts_with("rte_");
            if has(&directories, &format!("lib{library}.a")) {
                let kind =
                    if registers { "static:+whole-archive,-bundle" } else { "static:-bundle" };
                println!("cargo:rustc-link-lib={kind}={library}");
            } else if registers {
                return Err(format!(
                    "this SPDK has no archive lib{library}.a, and is linked statically only; install its static libraries"
                ));
            } else if is_installed(library) {
                println!("cargo:rustc-link-lib=dylib={library}");
            }
        }
        Ok(())
    }

    /// Returns whether the compiler finds a system library. SPDK's list is that of all its parts,
    /// of which we use few.
    fn is_installed(library: &str) -> bool {
        let file = format!("lib{library}.so");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let asked = Command::new(compiler).arg(format!("-print-file-name={file}")).output();
        // A file that is not found is answered as it was asked for.
        asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() != file)
    }

    /// Checks that the libraries are archives. A linker takes of shared libraries those that are
    /// referred to (rustc has it leave out the others), and what a program refers to in those that
    /// register themselves is nothing: it would link, start, and know no transport.
    fn check_archives(directories: &[&str]) -> Result<(), String> {
        let asked = std::env::var("TIDELOG_SPDK_LINK");
        if let Ok(asked) = asked.as_deref().map(str::trim)
            && asked != "static"
        {
            return Err(format!(
                "TIDELOG_SPDK_LINK={asked}: SPDK is linked statically only, as its transports register themselves and a \
                 linker leaves out shared libraries that nothing refers to; unset it, or write static"
            ));
        }
        if has(directories, "libspdk_nvme.a") {
            return Ok(());
        }
        Err("this SPDK has no archives (libspdk_nvme.a), and is linked statically only; install its static libraries \
             (`make install` of SPDK's sources does, and some distributions have a package spdk-static)"
            .into())
    }

    fn has(directories: &[&str], file: &str) -> bool {
        directories.iter().any(|directory| Path::new(directory).join(file).exists())
    }

    // -- its functions and types
    // -------------------------------------------------------------------------------

    const FUNCTIONS: &str = "spdk_env_opts_init|spdk_env_init|spdk_zmalloc|spdk_free|spdk_vtophys\
        |spdk_iommu_is_enabled|spdk_mem_register|spdk_mem_unregister|spdk_log_set_print_level\
        |spdk_nvme_transport_id_(parse|compare)|spdk_nvme_(connect_async|probe_poll_async|detach_async\
        |detach_poll_async|scan_attached)\
        |tidelog_spdk_(fault|listen|tidy)\
        |spdk_nvme_host_id_parse\
        |spdk_nvme_ctrlr_(get_default_ctrlr_opts|get_ns|get_data|get_regs_cap|get_registers\
        |get_regs_csts|process_admin_completions|disconnect|reconnect_async|reconnect_poll_async|fail|is_active_ns\
        |cmd_abort_ext|cmd_admin_raw|cmd_get_log_page_ext|cmd_io_raw|io_cmd_raw_no_payload_build|get_default_io_qpair_opts\
        |alloc_io_qpair|free_io_qpair|connect_io_qpair)\
        |spdk_nvme_poll_group_(create|add|process_completions|destroy)\
        |spdk_nvme_qpair_(process_completions|is_connected|add_cmd_error_injection)\
        |spdk_nvme_ns_(get_id|get_data|get_uuid|get_sector_size|get_num_sectors|get_md_size|get_csi|get_flags|get_max_io_xfer_size)\
        |spdk_nvme_ns_cmd_(read|write|write_zeroes|flush|dataset_management|io_mgmt_recv)";
    const VARIABLES: &str = "SPDK_VERSION_(MAJOR|MINOR)|SPDK_MALLOC_DMA|SPDK_VTOPHYS_ERROR\
        |SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS|SPDK_NVME_DATASET_MANAGEMENT_.*|SPDK_NVMF_NQN_MAX_LEN";
    const TYPES: &str = "spdk_nvme_(ns_flags|status_code_type|generic_command_status_code\
        |command_specific_status_code|media_error_status_code|path_status_code|dsm_attribute|transport_type|csi\
        |nvm_opcode|dsm_range|cpl|status)|spdk_log_level";

    fn bind(pkg_config: &PkgConfig) -> Result<(), String> {
        let mut query = vec!["--cflags"];
        query.extend(PACKAGES);
        let flags = pkg_config.ask(&query)?;
        let bindings = bindgen::Builder::default()
            .header("src/headers.h")
            .clang_args(flags.split_whitespace())
            .allowlist_function(FUNCTIONS)
            .allowlist_var(VARIABLES)
            .allowlist_type(TYPES)
            // Only pointers to commands are used, and a packed union within cannot be said in Rust.
            .blocklist_type("spdk_nvme_(cmd|cmd_cdw.*|cmd__.*|feat_.*)")
            .raw_line("#[repr(C)] pub struct spdk_nvme_cmd { _private: [u8; 0] }")
            // Packed, with aligned structures in it, which Rust has not: its bytes are as the
            // specification says.
            .opaque_type("spdk_nvme_ctrlr_data")
            .derive_default(true)
            .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
            .generate_comments(false)
            .prepend_enum_name(false)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .generate()
            .map_err(|error| {
                format!("cannot make bindings of SPDK's headers: {error}; bindgen needs libclang (libclang-dev)")
            })?;
        let out = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
        let out = PathBuf::from(out).join("bindings.rs");
        bindings
            .write_to_file(&out)
            .map_err(|error| format!("cannot write {}: {error}", out.display()))
    }
}
