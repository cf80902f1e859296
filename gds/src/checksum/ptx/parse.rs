//! The text of a module, line by line, as NVIDIA's compiler writes it.

use std::collections::HashMap;

use super::{Function, Instruction, Module, Op, Operand, Region, Space, Type, lowest};

/// Address of the module's variables; each has this much for itself.
const GLOBALS: u64 = 0x7_0000_0000;
const GLOBAL_ROOM: u64 = 1 << 20;

#[derive(Default)]
struct Names {
    registers: HashMap<String, usize>,
    parameters: HashMap<String, usize>,
    shared: HashMap<String, u64>,
    shared_bytes: u64,
    labels: HashMap<String, usize>,
}

impl Module {
    pub(in crate::checksum) fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or("").trim());
        let (mut globals, mut addresses) = (Vec::new(), HashMap::new());
        let (mut functions, mut entry): (Vec<Function>, _) = (Vec::new(), None);
        while let Some(line) = lines.next() {
            if line.starts_with(".global") {
                let base = GLOBALS + GLOBAL_ROOM * globals.len() as u64;
                let (name, bytes) = variable(line);
                addresses.insert(name, base);
                globals.push(Region { base, bytes, is_written: false });
            } else if line.starts_with(".func") || line.starts_with(".visible .entry") {
                let header: Vec<&str> = std::iter::once(line)
                    .chain(lines.by_ref().take_while(|&line| line != "{"))
                    .collect();
                let body: Vec<&str> = statements(&mut lines);
                if line.starts_with(".visible") {
                    entry = Some(functions.len());
                }
                let function = function(&header, &body, &addresses, &functions);
                functions.push(function);
            }
        }
        Self { functions, entry: entry.expect("a kernel"), globals }
    }
}

/// `.global .align 16 .b8 NAME[3] = {1, 2, 3};` or `.global .align 4 .u32 NAME = 1;`
fn variable(line: &str) -> (String, Vec<u8>) {
    let (declared, value) = line.trim_end_matches(';').split_once(" = ").expect("a value");
    let name = declared.split_whitespace().last().expect("a name");
    let name = name.split('[').next().expect("a name").to_owned();
    let numbers =
        value.trim_matches(['{', '}']).split(", ").map(|each| constant(each).expect("a number"));
    let bytes = if declared.contains(".b8") {
        numbers.map(|number| number as u8).collect()
    } else {
        numbers.flat_map(|number| (number as u32).to_le_bytes()).collect()
    };
    (name, bytes)
}

/// The lines of a body up to its end, braces of calls left out.
fn statements<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut depth = 1;
    let mut found = Vec::new();
    for line in lines {
        match line {
            "{" => depth += 1,
            "}" => depth -= 1,
            "" => {}
            _ => found.push(line),
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn function(
    header: &[&str],
    body: &[&str],
    globals: &HashMap<String, u64>,
    functions: &[Function],
) -> Function {
    let mut names = Names::default();
    let first = header[0].trim_end_matches('(');
    let name = first.split_whitespace().last().expect("a name").to_owned();
    // What is returned comes first, as the header has it.
    let returned = first.split_once('[').filter(|_| first.starts_with(".func"));
    let returned = returned.and_then(|(before, _)| before.split_whitespace().last());
    let own = header[1..].iter().filter(|line| line.starts_with(".param"));
    let own = own.filter_map(|line| line.trim_end_matches(',').split_whitespace().last());
    for parameter in returned.into_iter().chain(own) {
        let place = names.parameters.len();
        names.parameters.insert(parameter.to_owned(), place);
    }
    let own_parameters = names.parameters.len();

    let mut joined: Vec<String> = Vec::new();
    let mut open = String::new();
    for line in body {
        if let Some(label) = line.strip_suffix(':') {
            names.labels.insert(label.to_owned(), joined.len());
            continue;
        }
        open.push_str(line);
        if let Some(statement) = open.strip_suffix(';') {
            if !names.declare(statement) {
                joined.push(statement.to_owned());
            }
            open.clear();
        }
    }
    let mut read = Reader { names, globals, functions };
    let body = joined.iter().map(|statement| read.instruction(statement)).collect();
    let Names { registers, parameters, shared_bytes, .. } = read.names;
    let shared = shared_bytes as usize;
    Function { name, body, registers: registers.len(), parameters, own_parameters, shared }
}

impl Names {
    /// Returns whether a statement only declares something.
    fn declare(&mut self, statement: &str) -> bool {
        let name = statement.split_whitespace().last().unwrap_or("");
        let (name, size) = name.trim_end_matches(']').split_once('[').unwrap_or((name, "8"));
        if statement.starts_with(".param") {
            let place = self.parameters.len();
            self.parameters.entry(name.to_owned()).or_insert(place);
        } else if statement.starts_with(".shared") {
            self.shared.insert(name.to_owned(), self.shared_bytes);
            self.shared_bytes += size.parse::<u64>().expect("a size").next_multiple_of(16);
        }
        statement.starts_with('.')
    }

    fn register(&mut self, name: &str) -> usize {
        let place = self.registers.len();
        *self.registers.entry(name.to_owned()).or_insert(place)
    }
}

struct Reader<'a> {
    names: Names,
    globals: &'a HashMap<String, u64>,
    functions: &'a [Function],
}

impl Reader<'_> {
    fn instruction(&mut self, statement: &str) -> Instruction {
        let (mut rest, mut guard) = (statement, None);
        if let Some(guarded) = statement.strip_prefix('@') {
            let (predicate, behind) = guarded.split_once(char::is_whitespace).expect("guarded");
            let register = self.names.register(predicate.trim_start_matches('!'));
            guard = Some((register, !predicate.starts_with('!')));
            rest = behind.trim();
        }
        let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let parts: Vec<&str> = name.split('.').collect();
        let op = op(&parts).unwrap_or_else(|| panic!("PTX that is not known: {statement}"));
        let operands = separated(operands).into_iter().map(|text| self.operand(text)).collect();
        Instruction { guard, op, operands }
    }

    fn operand(&mut self, text: &str) -> Operand {
        match text {
            "%tid.x" => return Operand::Thread,
            "%ctaid.x" => return Operand::Block,
            _ => {}
        }
        if let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            return Operand::Registers(
                inner.split(',').map(|name| self.names.register(name.trim())).collect(),
            );
        }
        if let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
            let places = inner.split(',').map(|name| self.names.parameters[name.trim()]);
            return Operand::Parameters(places.collect());
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return self.address(inner);
        }
        if text.starts_with('%') {
            // `%r1|%p1`: whether the lane was there is not asked for.
            let name = text.split('|').next().expect("a register");
            return Operand::Register(self.names.register(name));
        }
        if let Some(number) = constant(text) {
            return Operand::Constant(number);
        }
        if let Some(&label) = self.names.labels.get(text) {
            return Operand::Label(label);
        }
        if let Some(&address) = self.globals.get(text).or_else(|| self.names.shared.get(text)) {
            return Operand::Constant(address);
        }
        let function = self.functions.iter().position(|function| function.name == text);
        Operand::Function(function.unwrap_or_else(|| panic!("{text} is not declared")))
    }

    fn address(&mut self, text: &str) -> Operand {
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        let offset = constant(offset).expect("an offset");
        if base.starts_with('%') {
            return Operand::Address(Some(self.names.register(base)), offset);
        }
        if let Some(&parameter) = self.names.parameters.get(base) {
            return Operand::Parameter(parameter, offset as usize);
        }
        let known = self.globals.get(base).or_else(|| self.names.shared.get(base));
        Operand::Address(None, known.expect("a variable").wrapping_add(offset))
    }
}

/// Operands, without looking for commas inside of brackets.
fn separated(text: &str) -> Vec<&str> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[begin..].trim());
    found.retain(|each| !each.is_empty());
    found
}

fn constant(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned))
}

fn type_of(name: &str) -> Option<Type> {
    if name == "pred" {
        return Some(Type { bits: 1, is_signed: false });
    }
    let bits = name.get(1..)?.parse().ok().filter(|bits| [8, 16, 32, 64].contains(bits))?;
    "usb".contains(name.get(..1)?).then_some(Type { bits, is_signed: name.starts_with('s') })
}

fn op(parts: &[&str]) -> Option<Op> {
    let of = parts.last().and_then(|name| type_of(name));
    Some(match *parts {
        ["bra"] | ["bra", "uni"] => Op::Branch,
        ["call", "uni"] => Op::Call,
        ["ret"] => Op::Return,
        ["bar", "sync"] => Op::Barrier,
        ["shfl", "sync", "bfly", "b32"] => Op::Exchange,
        ["cvt", to, from] => Op::Convert { to: type_of(to)?, from: type_of(from)? },
        ["mov", _] | ["cvta", "to", "global", "u64"] => Op::Unary(|_, a| a, of?),
        ["not", _] => Op::Unary(|_, a| !a, of?),
        ["neg", _] => Op::Unary(|_, a| a.wrapping_neg(), of?),
        ["and", _] => Op::Binary(|_, a, b| a & b, of?),
        ["or", _] => Op::Binary(|_, a, b| a | b, of?),
        ["xor", _] => Op::Binary(|_, a, b| a ^ b, of?),
        ["add", _] => Op::Binary(|_, a, b| a.wrapping_add(b), of?),
        ["sub", _] => Op::Binary(|_, a, b| a.wrapping_sub(b), of?),
        ["mul", "lo", _] => Op::Binary(|_, a, b| a.wrapping_mul(b), of?),
        ["mul", "wide", _] => Op::MultiplyWide(of?),
        ["div", "u32" | "u64"] => Op::Binary(|_, a, b| a / b, of?),
        ["min", _] => Op::Binary(|of, a, b| if of.number(a) <= of.number(b) { a } else { b }, of?),
        // A shift by more bits than there are is one by all of them.
        ["shl", _] => Op::Binary(|of, a, by| if by < of.bits.into() { a << by } else { 0 }, of?),
        ["shr", _] => Op::Binary(|of, a, by| lowest(of.number(a) >> by.min(64)), of?),
        ["setp", "eq", _] => Op::Compare(|a, b| a == b, of?),
        ["setp", "ne", _] => Op::Compare(|a, b| a != b, of?),
        ["setp", "lt", _] => Op::Compare(|a, b| a < b, of?),
        ["setp", "le", _] => Op::Compare(|a, b| a <= b, of?),
        ["setp", "gt", _] => Op::Compare(|a, b| a > b, of?),
        ["setp", "ge", _] => Op::Compare(|a, b| a >= b, of?),
        ["selp", _] => Op::Select,
        ["ld", space, .., "v4", _] => Op::Load { space: space_of(space)?, item: of?, count: 4 },
        ["ld", space, ..] => Op::Load { space: space_of(space)?, item: of?, count: 1 },
        ["st", space, "v4", _] => Op::Store { space: space_of(space)?, item: of?, count: 4 },
        ["st", space, _] => Op::Store { space: space_of(space)?, item: of?, count: 1 },
        _ => return None,
    })
}

fn space_of(name: &str) -> Option<Space> {
    Some(match name {
        "param" => Space::Parameter,
        "global" => Space::Global,
        "shared" => Space::Shared,
        _ => return None,
    })
}
