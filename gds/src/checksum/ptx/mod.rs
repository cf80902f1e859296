//! An interpreter of the PTX that is checked in, for tests: it knows as much of PTX as the kernel
//! consists of, and refuses the rest.
//!
//! Beside results it sees what a GPU would not tell of, or only as a fault: memory that is not the
//! launch's, addresses that are not aligned, words of shared memory that threads touch without a
//! barrier between them, and threads that do not come to the same barrier.

mod block;
mod parse;

use std::collections::HashMap;

/// A module.
pub(super) struct Module {
    functions: Vec<Function>,
    /// The kernel's place among them.
    entry: usize,
    /// Variables of the module: where they begin in global memory, and what they hold.
    globals: Vec<Region>,
}

/// Bytes of global memory at an address.
pub(super) struct Region {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) is_written: bool,
}

struct Function {
    name: String,
    body: Vec<Instruction>,
    registers: usize,
    /// Names of parameters, its own first, those that it calls others with behind them.
    parameters: HashMap<String, usize>,
    own_parameters: usize,
    /// Bytes of shared memory.
    shared: usize,
}

struct Instruction {
    /// The predicate that decides whether it is carried out, and which value of it does.
    guard: Option<(usize, bool)>,
    op: Op,
    operands: Vec<Operand>,
}

/// An integer's width, and how its highest bit counts. A predicate has one bit.
#[derive(Clone, Copy)]
struct Type {
    bits: u32,
    is_signed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Parameter,
    Global,
    Shared,
}

enum Op {
    Unary(fn(Type, u64) -> u64, Type),
    Binary(fn(Type, u64, u64) -> u64, Type),
    Convert {
        to: Type,
        from: Type,
    },
    MultiplyWide(Type),
    Compare(fn(i128, i128) -> bool, Type),
    Select,
    Load {
        space: Space,
        item: Type,
        count: usize,
    },
    Store {
        space: Space,
        item: Type,
        count: usize,
    },
    Branch,
    Call,
    Return,
    Barrier,
    /// `shfl.sync.bfly`.
    Exchange,
}

enum Operand {
    Register(usize),
    Constant(u64),
    Thread,
    Block,
    Registers(Vec<usize>),
    /// Address relative to a register's value, or a constant.
    Address(Option<usize>, u64),
    Parameter(usize, usize),
    Label(usize),
    Function(usize),
    Parameters(Vec<usize>),
}

impl Type {
    fn mask(self) -> u64 {
        if self.bits == 64 { u64::MAX } else { (1 << self.bits) - 1 }
    }

    /// The number that the lowest bits stand for.
    fn number(self, bits: u64) -> i128 {
        let number = i128::from(bits & self.mask());
        let is_negative = self.is_signed && number >> (self.bits - 1) & 1 == 1;
        if is_negative { number - (1 << self.bits) } else { number }
    }
}

impl Module {
    /// Runs blocks of threads, with the kernel's parameters, on memory. Threads run in the order of
    /// their numbers between two barriers, or against it.
    pub(super) fn launch(
        &self,
        (blocks, threads): (u32, u32),
        parameters: &[u64],
        memory: &mut [Region],
        backward: bool,
    ) {
        for block in 0..blocks {
            block::Block::new(self, block, threads, parameters, memory, backward).run();
        }
    }
}

/// The lowest 64 bits of a number.
fn lowest(number: i128) -> u64 {
    number.cast_unsigned() as u64
}
