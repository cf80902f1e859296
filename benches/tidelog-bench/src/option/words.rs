//! Values of single options: words, and numbers within bounds.

use super::job::{ExitWhat, Level};
use super::value::{KbBase, bytes, colon_list, number, switch};

/// One value for all directions, or one for each; what is left out, or 0, has no limit.
pub(super) fn for_each_direction(
    text: &str,
    read: impl Fn(&str) -> Result<u64, String>,
) -> Result<[Option<u64>; 3], String> {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err("there are reads, writes and trims".to_owned());
    }
    let mut limits = [None; 3];
    for (index, limit) in limits.iter_mut().enumerate() {
        let part =
            if parts.len() == 1 { parts[0] } else { parts.get(index).copied().unwrap_or("") };
        *limit = if part.trim().is_empty() { None } else { Some(read(part)?).filter(|it| *it > 0) };
    }
    Ok(limits)
}

/// One value for all directions, or one for each; what is left out is as the last.
pub(super) fn for_directions<T: Copy>(
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<[T; 3], String> {
    let parts: Vec<T> = text.split(',').map(read).collect::<Result<_, _>>()?;
    match parts[..] {
        [all] => Ok([all; 3]),
        [reads, writes] => Ok([reads, writes, writes]),
        [reads, writes, trims] => Ok([reads, writes, trims]),
        _ => Err("there are reads, writes and trims".to_owned()),
    }
}

pub(super) fn sync(text: &str) -> Result<bool, String> {
    match text.trim() {
        "0" | "none" => Ok(false),
        "1" | "sync" | "dsync" => Ok(true),
        _ => Err("there are none, sync and dsync".to_owned()),
    }
}

pub(super) fn policy(text: &str) -> Result<bool, String> {
    match text.trim() {
        "shared" => Ok(false),
        "split" => Ok(true),
        _ => Err("there are shared and split".to_owned()),
    }
}

pub(super) fn size_range(text: &str, base: KbBase) -> Result<(u64, u64), String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (bytes(least, base)?, bytes(most, base)?);
    if least > most {
        Err(format!("{text}: the smaller size comes first"))
    } else {
        Ok((least, most))
    }
}

/// The devices that may lose what they hold. fio's switch of this name is another thing.
pub(super) fn overwrite(text: &str) -> Result<Vec<String>, String> {
    match text.trim() {
        "0" => Ok(Vec::new()),
        "1" => Err("here this names the devices that may lose what they hold; to write over what \
            was written, run a job that writes before"
            .to_owned()),
        names => Ok(colon_list(names)),
    }
}

pub(super) fn percentage(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|it| *it > 0.0 && *it <= 100.0);
    number.ok_or_else(|| format!("{text:?} is no percentage above 0"))
}

pub(super) fn generator(text: &str) -> Result<bool, String> {
    match text.trim() {
        "lfsr" => Ok(true),
        // Where numbers come from is not what is measured.
        "tausworthe" | "tausworthe64" => Ok(false),
        _ => Err("there is lfsr".to_owned()),
    }
}

pub(super) fn rate_process(text: &str) -> Result<bool, String> {
    match text.trim() {
        "linear" => Ok(false),
        "poisson" => Ok(true),
        _ => Err("there are linear and poisson".to_owned()),
    }
}

pub(super) fn submit_mode(text: &str) -> Result<bool, String> {
    match text.trim() {
        "inline" => Ok(false),
        "offload" => Ok(true),
        _ => Err("there are inline and offload".to_owned()),
    }
}

pub(super) fn dedupe_mode(text: &str) -> Result<bool, String> {
    match text.trim() {
        "repeat" => Ok(false),
        "working_set" => Ok(true),
        _ => Err("there are repeat and working_set".to_owned()),
    }
}

pub(super) fn zonemode(text: &str) -> Result<(bool, bool), String> {
    match text.trim() {
        "none" => Ok((false, false)),
        "strided" => Ok((true, false)),
        "zbd" => Ok((false, true)),
        _ => Err("there are none, strided and zbd".to_owned()),
    }
}

pub(super) fn exit_what(text: &str) -> Result<ExitWhat, String> {
    match text.trim() {
        "group" => Ok(ExitWhat::Group),
        "stonewall" => Ok(ExitWhat::Stonewall),
        "all" => Ok(ExitWhat::All),
        _ => Err("there are group, stonewall and all".to_owned()),
    }
}

pub(super) fn directory(text: &str) -> Result<String, String> {
    match &colon_list(text)[..] {
        [one] => Ok(one.clone()),
        [] => Err("name the directory".to_owned()),
        _ => Err("one directory serves all of a job's files here".to_owned()),
    }
}

pub(super) fn level(text: &str) -> Result<Level, String> {
    match text.trim() {
        "raw" => Ok(Level::Raw),
        "log" => Ok(Level::Log),
        _ => Err("there are raw and log".to_owned()),
    }
}

pub(super) fn kind_of_verify(text: &str) -> Result<bool, String> {
    match text.trim() {
        "crc32c" | "crc32c-intel" => Ok(true),
        "0" => Ok(false),
        _ => Err("there is crc32c; fio's other kinds are not supported".to_owned()),
    }
}

pub(super) fn kb_base(text: &str) -> Result<KbBase, String> {
    match text.trim() {
        "1024" => Ok(KbBase::Compatible),
        "1000" => Ok(KbBase::International),
        _ => Err("there are 1024 and 1000".to_owned()),
    }
}

pub(super) fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    let one = |part: &String| part.trim().parse().ok().filter(|it| (0.0..=100.0).contains(it));
    let list: Option<Vec<f64>> = colon_list(text).iter().map(one).collect();
    let mut list = list.ok_or("percentiles are numbers from 0 to 100, separated by colons")?;
    if list.is_empty() || list.len() > 20 {
        return Err("1 to 20 percentiles can be reported".to_owned());
    }
    list.sort_by(f64::total_cmp);
    Ok(list)
}

pub(super) fn at_most(text: &str, least: u64, most: u32) -> Result<u32, String> {
    let number = number(text, least)?;
    u32::try_from(number).ok().filter(|it| *it <= most).ok_or_else(|| format!("{most} is the most"))
}

pub(super) fn always(text: &str, why: &str) -> Result<(), String> {
    if switch(text)? { Ok(()) } else { Err(format!("{why}; leave the option out")) }
}

pub(super) fn nvme_commands(text: &str) -> Result<(), String> {
    match text.trim() {
        "nvme" => Ok(()),
        _ => Err("there is nvme".to_owned()),
    }
}
