//! Checks of options of a job that go together.

use tidelog_engine::memory::ALIGNMENT;
use tidelog_engine::path::{DEVICES_MAX, DeviceSpec, PathKind};

use super::distribution::Distribution;
use super::job::{JobOptions, Level, Queueing};
use super::sizes::Sizes;
use super::value::Amount;
use crate::exit::BenchError;

impl JobOptions {
    /// Checks that the options go together.
    ///
    /// # Errors
    /// Two that do not.
    pub fn check(&self) -> Result<(), BenchError> {
        let engine = self.engine()?;
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        if self.filename.is_empty() {
            return wrong("no filename: name the devices or files, separated by colons");
        }
        if self.filename.len() > DEVICES_MAX {
            return wrong(&format!("a job has at most {DEVICES_MAX} files; make it two jobs"));
        }
        let is_controller = |name: &String| DeviceSpec::new(name).controller().is_some();
        if engine == PathKind::Spdk && !self.filename.iter().all(is_controller) {
            return wrong(
                "tidelog-spdk takes controllers, and a colon in a name is \\: as in filename=spdk\\:0000\\:01\\:00.0",
            );
        }
        if engine != PathKind::Spdk && self.filename.iter().any(is_controller) {
            return wrong("a controller needs ioengine=tidelog-spdk");
        }
        if engine == PathKind::Spdk && self.level == Level::Raw && self.numjobs > 1 {
            return wrong("a controller serves one job: give numjobs=1");
        }
        if self.time_based && self.runtime.is_none() {
            return wrong("time_based needs runtime");
        }
        self.check_raw()?;
        self.check_kernel(engine)?;
        if self.offload.is_some_and(|offload| offload != (engine == PathKind::Posix)) {
            return wrong(
                "io_submit_mode: tidelog-posix submits from threads of its own (offload), the other data paths \
                 from the job's thread (inline)",
            );
        }
        if self.level == Level::Raw && !self.sizes.are_multiples_of(ALIGNMENT as u64) {
            return wrong(
                "at the raw level every operation is a multiple of 4096 bytes \
                 (to fio, and so here, 4KiB is 4000 bytes: write 4k)",
            );
        }
        if self.level == Level::Raw && !self.fixedbufs {
            return wrong(
                "at the raw level buffers are registered wherever that is possible; leave fixedbufs out",
            );
        }
        if self.level == Level::Raw && self.sizes.most() > u64::from(u32::MAX) {
            return wrong("at the raw level an operation is smaller than 4g");
        }
        if self.verify && !matches!(self.sizes, Sizes::One(_)) && self.level == Level::Raw {
            return wrong("verify needs one block size at the raw level: give bs");
        }
        if self.load.trims && (self.level == Level::Log || self.verify) {
            return wrong("trims are for the raw level, and leave nothing that verify could read");
        }
        if !self.cpus_allowed.is_empty() && self.numa_cpu_nodes.is_some() {
            return wrong("cpus_allowed and numa_cpu_nodes both say where it runs: give one");
        }
        if self.workload.is_some() != self.trace.is_some() {
            return wrong(
                "a plan names storages, and its trace their sizes: give workload and trace",
            );
        }
        if self.workload.is_some() {
            self.check_workload()?;
        }
        if self.verify && self.load.is_mix() {
            return wrong("verify does not work with a mix: write first, then read, as two jobs");
        }
        if engine == PathKind::Sim && self.level == Level::Raw && self.numjobs > 1 {
            return wrong("simulated disks serve one job: give numjobs=1");
        }
        if engine == PathKind::Sim && !matches!(self.size, Some(Amount::Bytes(_))) {
            return wrong("simulated disks have no size of their own: give size in bytes");
        }
        match self.overwrite.iter().find(|name| !self.filename.contains(name)) {
            Some(name) => wrong(&format!(
                "overwrite={name}: no filename is exactly that; overwrite repeats a name, letter for letter"
            )),
            None => Ok(()),
        }
    }

    /// Checks options that only the raw level has: that they are asked for there, and go together.
    fn check_raw(&self) -> Result<(), BenchError> {
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        let is_even = self.distribution == Distribution::Even;
        let raw_only = [
            ("rw=LOAD:OFFSET", self.load.add != 0),
            ("random_distribution", !is_even),
            ("zonemode", self.strided),
            ("flow", self.flow > 0),
            ("thinktime", !self.thinktime.is_zero()),
            ("rate_min", self.rate_min.iter().any(Option::is_some)),
            ("rate_process", self.poisson),
            ("number_ios", self.number_ios.is_some()),
            ("random_generator", self.lfsr),
            ("latency_target", self.latency_target.is_some()),
            ("filesize", self.filesize.is_some()),
            ("bs of reads and of writes", matches!(self.sizes, Sizes::Each(_))),
            ("end_fsync", self.end_fsync),
            ("sync", self.sync),
            ("iodepth_batch and iodepth_low", self.queue != Queueing::default()),
            ("blockalign", self.blockalign > 0),
            ("percentage_random", self.percentage_random != [100; 3]),
            ("verify_backlog", self.verify_backlog > 0),
            ("verify_dump", self.verify_dump),
            ("ss", self.steady.is_some()),
            ("dedupe_percentage", self.content.dedupe > 0),
            ("buffer_compress_percentage", self.content.compress > 0),
            ("refill_buffers", self.content.refill),
        ];
        if let Some((name, _)) =
            raw_only.iter().find(|(_, is_given)| *is_given && self.level == Level::Log)
        {
            return wrong(&format!("{name} is for the raw level"));
        }
        if self.verify_dump && self.verify && !self.load.writes {
            return wrong(
                "verify_dump: only the job that writes knows what a block should be; give it to that job",
            );
        }
        if !self.blockalign.is_multiple_of(ALIGNMENT as u64) {
            return wrong("blockalign is a multiple of 4096 bytes");
        }
        let is_whole = self.blockalign == 0 && self.percentage_random == [100; 3];
        if (self.verify || self.lfsr) && self.load.random && !is_whole {
            return wrong(
                "verify and random_generator=lfsr take each block once: leave blockalign and percentage_random out",
            );
        }
        if self.load.add != 0 && !matches!(self.sizes, Sizes::One(_)) {
            return wrong("rw with an offset needs one block size: give bs");
        }
        if !self.load.add.unsigned_abs().is_multiple_of(ALIGNMENT as u64) {
            return wrong("rw: the offset is a multiple of 4096 bytes");
        }
        if let Sizes::One(size) = self.sizes
            && self.load.add != 0
            && self.load.add == -size.cast_signed()
        {
            return wrong("rw: with this offset every operation goes to the same block");
        }
        if !is_even && !self.load.random {
            return wrong("random_distribution is for random loads: give rw=randread, for example");
        }
        if !is_even && self.verify {
            return wrong(
                "verify needs each block to be written once: leave random_distribution out",
            );
        }
        if self.lfsr && (!matches!(self.sizes, Sizes::One(_)) || self.norandommap || !is_even) {
            return wrong(
                "random_generator=lfsr takes each block once: it needs one block size, and neither norandommap nor \
                 random_distribution",
            );
        }
        if self.verify && self.load.add < 0 {
            return wrong("verify does not go backwards: give rw an offset above 0, or none");
        }
        self.check_zones()?;
        self.check_pace()?;
        if matches!(self.size, Some(Amount::Percent(_))) && self.filesize.is_some() {
            return wrong("filesize and a size in percent both say how large files are: give one");
        }
        Ok(())
    }

    /// Checks that options that divide a file into zones go together.
    fn check_zones(&self) -> Result<(), BenchError> {
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        if self.strided && (self.zonesize == 0 || self.load.random || self.load.add != 0) {
            return wrong(
                "zonemode=strided needs zonesize, and a sequential load without an offset",
            );
        }
        let multiples = [self.zonesize, self.zonerange, self.zoneskip];
        if (self.strided || self.zbd)
            && !multiples.iter().all(|it| it.is_multiple_of(ALIGNMENT as u64))
        {
            return wrong("zonesize, zonerange and zoneskip are multiples of 4096 bytes");
        }
        if self.strided && self.zonesize < self.sizes.most() {
            return wrong("zonesize must hold at least one operation");
        }
        if !self.strided && !self.zbd && multiples.iter().any(|it| *it > 0) {
            return wrong(
                "zonesize, zonerange and zoneskip are for zonemode=strided and zonemode=zbd",
            );
        }
        if self.zonerange > 0 && self.zonerange < self.zonesize {
            return wrong("zonerange is the whole zone, of which zonesize is a part");
        }
        Ok(())
    }

    /// Checks that options that hold operations back go together.
    fn check_pace(&self) -> Result<(), BenchError> {
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        if self.latency_target.is_some() == self.latency_window.is_zero() {
            return wrong(
                "latency_target and latency_window go together: the window is how long each depth is tried",
            );
        }
        let is_held_back = self.rate.iter().chain(&self.rate_iops).any(Option::is_some);
        let [least, most] = self.queue.complete;
        if most > 0 && least > most {
            return wrong("iodepth_batch_complete_min is at most iodepth_batch_complete_max");
        }
        if self.poisson && !is_held_back {
            return wrong("rate_process=poisson needs rate or rate_iops");
        }
        Ok(())
    }

    /// Checks that no option was given that a plan decides.
    fn check_workload(&self) -> Result<(), BenchError> {
        const DECIDED: [&str; 17] = [
            "rw",
            "readwrite",
            "bs",
            "blocksize",
            "bsrange",
            "blocksize_range",
            "bssplit",
            "iodepth",
            "numjobs",
            "size",
            "io_size",
            "io_limit",
            "rwmixread",
            "rate",
            "rate_iops",
            "verify",
            "fsync",
        ];
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        if self.level == Level::Raw {
            return wrong("a plan moves tensors: give level=log");
        }
        match self.given.iter().find(|(name, _)| DECIDED.contains(&name.as_str())) {
            Some((name, _)) => wrong(&format!("{name}: the plan decides this; leave it out")),
            None => Ok(()),
        }
    }
}
