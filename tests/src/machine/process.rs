use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// Tells a process of a test that it is one, and what it is to do.
const TOLD: &str = "TIDELOG_TEST_TOLD";
/// Prefix of a child's lines on its standard output, among what the test harness says.
const SAYS: &str = "child: ";

/// Returns the message to this process, if a test started it as its [`Other`].
pub fn told() -> Option<String> {
    std::env::var(TOLD).ok()
}

/// A test run again as another process, which is killed when this goes.
#[derive(Debug)]
pub struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts the process: `told` is what [`told`] returns there, and `through` a program with
    /// arguments that runs it.
    pub fn start(test: &str, told: &str, through: &[&OsStr]) -> Self {
        let binary = std::env::current_exe().expect("this program has a file");
        let mut words = through.iter().map(OsStr::new).chain([binary.as_os_str()]);
        let mut child = Command::new(words.next().expect("at least the binary"))
            .args(words)
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(TOLD, told)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("processes can be started");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    /// Sends a message to the process that started this one.
    pub fn say(what: impl std::fmt::Display) {
        println!("\n{SAYS}{what}");
    }

    /// The next thing that it says; `None` once it has ended.
    pub fn read_line(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }

    /// SIGKILL: no destructor runs.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}
