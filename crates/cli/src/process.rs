//! What Linux tells a process of itself; nothing where the system is another one.

/// The most memory that this process has held.
pub fn peak_memory_bytes() -> Option<u64> {
    let kib: u64 = status("VmHWM:")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// One field of the account of this process.
pub fn status(field: &str) -> Option<String> {
    let account = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(account.lines().find_map(|line| line.strip_prefix(field))?.trim().to_owned())
}
