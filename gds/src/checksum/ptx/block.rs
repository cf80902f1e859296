//! One block of threads.

use super::{Function, Module, Op, Operand, Region, Space, lowest};

const WARP: usize = 32;
/// Bytes that a parameter has at most.
const PARAMETER: usize = 16;

pub(super) struct Block<'a> {
    module: &'a Module,
    number: u32,
    memory: &'a mut [Region],
    shared: Vec<u8>,
    /// Threads that have touched each word of it, with the barrier since which they have.
    touched: Vec<Touched>,
    barriers: u32,
    threads: Vec<Thread>,
    backward: bool,
}

#[derive(Clone, Copy, Default)]
struct Touched {
    written: Option<(u32, usize)>,
    read: Option<(u32, usize)>,
    /// True if more than that thread has read it since that barrier.
    read_by_others: bool,
}

struct Thread {
    number: usize,
    frames: Vec<Frame>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// Exchange: an instruction that waits for other threads.
    Exchange(usize),
    Barrier(usize),
    Ended,
}

struct Frame {
    function: usize,
    next: usize,
    registers: Vec<u64>,
    parameters: Vec<[u8; PARAMETER]>,
}

impl Frame {
    fn new(module: &Module, function: usize) -> Self {
        let Function { registers, parameters, .. } = &module.functions[function];
        let parameters = vec![[0; PARAMETER]; parameters.len()];
        Self { function, next: 0, registers: vec![0; *registers], parameters }
    }
}

impl<'a> Block<'a> {
    pub(super) fn new(
        module: &'a Module,
        number: u32,
        threads: u32,
        parameters: &[u64],
        memory: &'a mut [Region],
        backward: bool,
    ) -> Self {
        let kernel = &module.functions[module.entry];
        assert_eq!(kernel.own_parameters, parameters.len());
        let thread = |number| {
            let mut frame = Frame::new(module, module.entry);
            for (place, parameter) in frame.parameters.iter_mut().zip(parameters) {
                place[..8].copy_from_slice(&parameter.to_le_bytes());
            }
            Thread { number, frames: vec![frame], state: State::Running }
        };
        let threads = (0..threads as usize).map(thread).collect();
        // Nobody says what is in shared memory at first.
        let shared = vec![0xa5; kernel.shared];
        let touched = vec![Touched::default(); kernel.shared.div_ceil(4)];
        Self { module, number, memory, shared, touched, barriers: 0, threads, backward }
    }

    pub(super) fn run(mut self) {
        let mut order: Vec<usize> = (0..self.threads.len()).collect();
        if self.backward {
            order.reverse();
        }
        loop {
            for warp in order.chunks(WARP) {
                self.run_warp(warp);
            }
            let first = self.threads[0].state;
            let same = self.threads.iter().all(|thread| thread.state == first);
            assert!(same, "the threads of a block came to different places");
            if first == State::Ended {
                return;
            }
            self.barriers += 1;
            self.threads.iter_mut().for_each(|thread| thread.state = State::Running);
        }
    }

    /// Runs until none of its threads can go on alone.
    fn run_warp(&mut self, warp: &[usize]) {
        loop {
            for &thread in warp {
                while self.threads[thread].state == State::Running {
                    self.step(thread);
                }
            }
            let state = self.threads[warp[0]].state;
            if !matches!(state, State::Exchange(_)) {
                return;
            }
            let all = warp.iter().all(|&thread| self.threads[thread].state == state);
            assert!(all && warp.len() == WARP, "not all lanes exchange: {state:?}");
            self.exchange(warp);
        }
    }

    /// Each lane gets what the lane has whose number differs in some bits.
    fn exchange(&mut self, warp: &[usize]) {
        let module = self.module;
        let mut given = vec![(0, 0); self.threads.len()];
        for &thread in warp {
            let frame = self.frame(thread);
            let operands = &module.functions[frame.function].body[frame.next].operands;
            let [_, value, distance, clamp, mask] = &operands[..] else { panic!("shfl") };
            let [value, distance, clamp, mask] =
                [value, distance, clamp, mask].map(|operand| self.value(thread, operand));
            assert_eq!((clamp, mask as u32), (31, u32::MAX), "of a whole warp");
            given[thread] = (value, distance as usize);
        }
        for &thread in warp {
            let other = thread ^ given[thread].1;
            self.set(thread, 0, given[other].0 & u64::from(u32::MAX));
            self.threads[thread].state = State::Running;
            self.frame_mut(thread).next += 1;
        }
    }

    fn frame(&self, thread: usize) -> &Frame {
        self.threads[thread].frames.last().expect("it has not ended")
    }

    fn frame_mut(&mut self, thread: usize) -> &mut Frame {
        self.threads[thread].frames.last_mut().expect("it has not ended")
    }

    fn value(&self, thread: usize, operand: &Operand) -> u64 {
        match *operand {
            Operand::Register(register) => self.frame(thread).registers[register],
            Operand::Constant(value) => value,
            Operand::Thread => self.threads[thread].number as u64,
            Operand::Block => self.number.into(),
            _ => panic!("no value"),
        }
    }

    /// Sets the register that is the operand of that number of the instruction at hand.
    fn set(&mut self, thread: usize, operand: usize, value: u64) {
        let module = self.module;
        let frame = self.frame_mut(thread);
        let operands = &module.functions[frame.function].body[frame.next].operands;
        let Operand::Register(register) = operands[operand] else { panic!("no register") };
        frame.registers[register] = value;
    }

    fn step(&mut self, thread: usize) {
        let module = self.module;
        let frame = self.frame(thread);
        let place = frame.next;
        let instruction = &module.functions[frame.function].body[place];
        let operands = &instruction.operands[..];
        if let Some((predicate, wanted)) = instruction.guard
            && (frame.registers[predicate] != 0) != wanted
        {
            self.frame_mut(thread).next += 1;
            return;
        }
        let value = |number: usize| self.value(thread, &operands[number]);
        match instruction.op {
            Op::Unary(apply, of) => self.set(thread, 0, apply(of, value(1)) & of.mask()),
            Op::Binary(apply, of) => {
                let result = apply(of, value(1) & of.mask(), value(2) & of.mask());
                self.set(thread, 0, result & of.mask());
            }
            Op::Convert { to, from } => {
                self.set(thread, 0, lowest(from.number(value(1))) & to.mask());
            }
            Op::MultiplyWide(of) => {
                self.set(thread, 0, lowest(of.number(value(1)) * of.number(value(2))));
            }
            Op::Compare(compare, of) => {
                let holds = compare(of.number(value(1)), of.number(value(2)));
                self.set(thread, 0, holds.into());
            }
            Op::Select => {
                self.set(thread, 0, value(if value(3) != 0 { 1 } else { 2 }));
            }
            Op::Load { space, item, count } => {
                let bytes = (item.bits / 8) as usize;
                let read = self.load(thread, space, &operands[1], bytes * count);
                let numbers: Vec<u64> = read.chunks(bytes).map(number).collect();
                match &operands[0] {
                    Operand::Registers(registers) => {
                        for (&register, number) in registers.iter().zip(numbers) {
                            self.frame_mut(thread).registers[register] = number;
                        }
                    }
                    _ => self.set(thread, 0, lowest(item.number(numbers[0]))),
                }
            }
            Op::Store { space, item, count } => {
                let bytes = (item.bits / 8) as usize;
                let numbers: Vec<u64> = match &operands[1] {
                    Operand::Registers(registers) => {
                        registers.iter().map(|&register| frame.registers[register]).collect()
                    }
                    operand => vec![self.value(thread, operand)],
                };
                assert_eq!(numbers.len(), count);
                let written: Vec<u8> = numbers
                    .iter()
                    .flat_map(|number| number.to_le_bytes()[..bytes].to_vec())
                    .collect();
                self.store(thread, space, &operands[0], &written);
            }
            Op::Branch => {
                let Operand::Label(label) = operands[0] else { panic!("no label") };
                self.frame_mut(thread).next = label;
                return;
            }
            Op::Call => {
                let [_, Operand::Function(function), Operand::Parameters(given)] = operands else {
                    panic!("a call of another kind")
                };
                // What it returns is its first parameter.
                let mut called = Frame::new(module, *function);
                for (place, &given) in called.parameters[1..].iter_mut().zip(given) {
                    *place = frame.parameters[given];
                }
                self.threads[thread].frames.push(called);
                return;
            }
            Op::Return => {
                let ended = self.threads[thread].frames.pop().expect("it ran");
                let Some(caller) = self.threads[thread].frames.last_mut() else {
                    self.threads[thread].state = State::Ended;
                    return;
                };
                let call = &module.functions[caller.function].body[caller.next];
                let Operand::Parameters(result) = &call.operands[0] else { panic!("no result") };
                caller.parameters[result[0]] = ended.parameters[0];
            }
            Op::Barrier => {
                self.threads[thread].state = State::Barrier(place);
            }
            Op::Exchange => {
                self.threads[thread].state = State::Exchange(place);
                return;
            }
        }
        self.frame_mut(thread).next += 1;
    }

    fn address(&self, thread: usize, operand: &Operand, length: usize) -> u64 {
        let Operand::Address(base, offset) = *operand else { panic!("no address") };
        let base = base.map_or(0, |register| self.frame(thread).registers[register]);
        let address = base.wrapping_add(offset);
        assert_eq!(address % length as u64, 0, "{length} bytes at an address that is not aligned");
        address
    }

    fn load(&mut self, thread: usize, space: Space, from: &Operand, length: usize) -> Vec<u8> {
        match (space, from) {
            (Space::Parameter, &Operand::Parameter(parameter, at)) => {
                self.frame(thread).parameters[parameter][at..at + length].to_vec()
            }
            (Space::Shared, _) => {
                let at = self.address(thread, from, length) as usize;
                for word in at / 4..(at + length).div_ceil(4) {
                    self.touched[word].read(self.barriers, thread);
                }
                self.shared[at..at + length].to_vec()
            }
            (Space::Global, _) => {
                let address = self.address(thread, from, length);
                let regions = self.memory.iter().chain(&self.module.globals);
                let mut found = regions.filter_map(|region| region.part(address, length));
                found
                    .next()
                    .unwrap_or_else(|| panic!("read {length} bytes at {address:#x}"))
                    .to_vec()
            }
            (Space::Parameter, _) => panic!("no parameter"),
        }
    }

    fn store(&mut self, thread: usize, space: Space, to: &Operand, bytes: &[u8]) {
        match (space, to) {
            (Space::Parameter, &Operand::Parameter(parameter, at)) => {
                let parameter = &mut self.frame_mut(thread).parameters[parameter];
                parameter[at..at + bytes.len()].copy_from_slice(bytes);
            }
            (Space::Shared, _) => {
                let at = self.address(thread, to, bytes.len()) as usize;
                for word in at / 4..(at + bytes.len()).div_ceil(4) {
                    self.touched[word].write(self.barriers, thread);
                }
                self.shared[at..at + bytes.len()].copy_from_slice(bytes);
            }
            (Space::Global, _) => {
                let address = self.address(thread, to, bytes.len());
                let region = self.memory.iter_mut().find(|region| {
                    region.is_written && region.part(address, bytes.len()).is_some()
                });
                let region = region.unwrap_or_else(|| panic!("wrote at {address:#x}"));
                let at = (address - region.base) as usize;
                region.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            }
            (Space::Parameter, _) => panic!("no parameter"),
        }
    }
}

impl Region {
    fn part(&self, address: u64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()?;
        self.bytes.get(at..at.checked_add(length)?)
    }
}

impl Touched {
    fn read(&mut self, since: u32, by: usize) {
        let written = self.written.is_some_and(|(when, who)| when == since && who != by);
        assert!(!written, "read without a barrier after another thread's write");
        let again = self.read.is_some_and(|(when, _)| when == since);
        if again {
            self.read_by_others |= self.read != Some((since, by));
        } else {
            (self.read, self.read_by_others) = (Some((since, by)), false);
        }
    }

    fn write(&mut self, since: u32, by: usize) {
        let other = |touched: Option<(u32, usize)>| {
            touched.is_some_and(|(when, who)| when == since && who != by)
        };
        let read = self.read.is_some_and(|(when, _)| when == since) && self.read_by_others;
        assert!(!other(self.written), "two threads wrote it without a barrier between them");
        assert!(
            !other(self.read) && !read,
            "written without a barrier after another thread's read"
        );
        self.written = Some((since, by));
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(number)
}
