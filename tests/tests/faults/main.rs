//! Faults of real files and devices, under load: whatever happens, nothing hangs, no wrong byte is
//! answered, errors say where, and what was acknowledged is there once the fault is undone. Where
//! the machine has no loop devices, mounts or control groups, a test says so.

mod devices;
mod file_systems;
mod full;
mod memory;
mod processes;
mod reclaim;
mod rig;
mod streams;
