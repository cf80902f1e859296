//! Exit codes of tools, each with the text that `--help` shows for it.

use std::fmt::Write;
use std::process::ExitCode;

/// The command line makes no sense (`EX_USAGE`): the same for every tool.
pub(crate) const USAGE: u8 = 64;

/// Exit code of lost output (`EX_IOERR`): the same for every tool.
pub(crate) const OUTPUT: u8 = 74;

/// Declares the exit codes of a tool, so that each code has one text: the variant's and the help's.
macro_rules! exit_codes {
    ($(#[$about:meta])* $name:ident { $($variant:ident = $code:expr, $text:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $text] $variant = $code,)*
        }

        impl $name {
            /// Returns the text on exit codes for `--help`.
            pub fn help() -> String {
                help(&[$(($code, $text)),*])
            }
        }

        impl From<$name> for u8 {
            fn from(exit: $name) -> Self {
                exit as Self
            }
        }

        impl From<$name> for ExitCode {
            fn from(exit: $name) -> Self {
                Self::from(exit as u8)
            }
        }
    };
}

fn help(codes: &[(u8, &str)]) -> String {
    let mut help = "Exit codes:".to_owned();
    for (code, text) in codes {
        let _ = write!(help, "\n  {code:<3} {text}");
    }
    help
}

exit_codes! {
    /// Exit code of `tidelog-format`.
    FormatExit {
        Clean = 0, "done, nothing was wrong";
        Repaired = 1, "repair: damage was found and repaired";
        Damaged = 2, "something is damaged";
        NotAPool = 3, "not a Tidelog pool, or not all of its devices";
        Refused = 4, "refused: in use, or not blank and not named again with --overwrite";
        Failed = 5, "the operating system or a device failed";
        Usage = USAGE, "the command line makes no sense";
        Output = OUTPUT, "the output could not be written";
    }
}

exit_codes! {
    /// Exit code of `tidelog-doctor`.
    DoctorExit {
        Works = 0, "a path is proven to work, and none failed its trial";
        NothingWorks = 1, "no path that was tried works";
        WrongBytes = 2, "a path returned other bytes than were written";
        Untried = 3, "nothing was tried: neither --scratch nor --pool was given";
        Refused = 4, "refused: the device is in use (mounted, a pool, driven by a program), or cannot change its driver";
        Failed = 5, "the operating system refused, or a driver did not take the device";
        Usage = USAGE, "the command line makes no sense";
        Output = OUTPUT, "the output could not be written";
    }
}

exit_codes! {
    /// Exit code of `tidelog-plan`.
    PlanExit {
        Done = 0, "done";
        Unusable = 1, "a file cannot be read, or is no valid trace, machine, plan or benchmark result";
        DoesNotRun = 2, "the machine cannot run the trace";
        NotFound = 3, "no such tensor, op or PCI device";
        Recorder = 4, "the recorder is missing, or failed";
        Usage = USAGE, "the command line makes no sense";
        Output = OUTPUT, "the output could not be written";
    }
}

exit_codes! {
    /// Exit code of `tidelog-bench`.
    BenchExit {
        Clean = 0, "every job ran to its end";
        Failed = 1, "an operation failed";
        BadData = 2, "verify found bytes that are not what was written";
        NoPath = 3, "the data path does not work here";
        Refused = 4, "refused: in use, or not blank and not named again in overwrite";
        System = 5, "a call of the operating system failed";
        Usage = USAGE, "the command line or a job file makes no sense";
        Output = OUTPUT, "the output could not be written";
        Interrupted = 130, "interrupted; what was measured until then is reported";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_each_code_with_its_text() {
        let help = BenchExit::help();
        let lines: Vec<&str> = help.lines().collect();
        assert_eq!(lines[..2], ["Exit codes:", "  0   every job ran to its end"]);
        assert_eq!(lines[9], "  130 interrupted; what was measured until then is reported");
    }

    #[test]
    fn no_command_line_and_lost_output_end_every_tool_alike() {
        let usage = [
            FormatExit::Usage as u8,
            DoctorExit::Usage as u8,
            PlanExit::Usage as u8,
            BenchExit::Usage as u8,
        ];
        assert_eq!(usage, [64; 4]);
        let output = [
            FormatExit::Output as u8,
            DoctorExit::Output as u8,
            PlanExit::Output as u8,
            BenchExit::Output as u8,
        ];
        assert_eq!(output, [74; 4]);
    }
}
