//! An assembler for BPF: one method per instruction, with forward jumps by labels.

use super::Error;
use super::object::LOAD_WIDE;
use super::sys::Insn;

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Bytes of a load or store.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Byte = 0x10,
    Word = 0x00,
    Double = 0x18,
}

/// When a jump is taken, by a register and another one or a number.
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    Equal = 0x10,
    Differ = 0x50,
    AtMost = 0xb0,
}

/// Arithmetic on 64 bits.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Add = 0x00,
    Sub = 0x10,
    Or = 0x40,
    And = 0x50,
    Left = 0x60,
    Right = 0x70,
    Move = 0xb0,
}

/// The stack's end.
pub(crate) const FRAME: u8 = 10;

/// Code that grows.
#[derive(Default)]
pub(crate) struct Asm {
    code: Vec<Insn>,
    places: Vec<Option<usize>>,
    /// Instructions whose distance to a label is still to be written.
    open: Vec<(usize, Label)>,
    /// Jumps that depend on something.
    pub(crate) branches: usize,
}

impl Asm {
    /// A label that is still to be [placed](Asm::place).
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label means the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// Number of the next instruction.
    pub(crate) fn here(&self) -> usize {
        self.code.len()
    }

    fn put(&mut self, code: u8, to: u8, from: u8, off: i16, imm: i32) {
        self.code.push(Insn { code, regs: to | from << 4, off, imm });
    }

    /// `to = from[off]`
    pub(crate) fn load(&mut self, size: Size, to: u8, from: u8, off: i16) {
        self.put(0x61 | size as u8, to, from, off, 0);
    }

    /// `to[off] = from`
    pub(crate) fn store(&mut self, size: Size, to: u8, off: i16, from: u8) {
        self.put(0x63 | size as u8, to, from, off, 0);
    }

    /// Eight bytes of zero on the stack.
    pub(crate) fn clear(&mut self, off: i16) {
        self.put(0x7a, FRAME, 0, off, 0);
    }

    /// `to = to op from`
    pub(crate) fn reg(&mut self, op: Op, to: u8, from: u8) {
        self.put(0x0f | op as u8, to, from, 0, 0);
    }

    /// `to = to op number`
    pub(crate) fn imm(&mut self, op: Op, to: u8, number: i32) {
        self.put(0x07 | op as u8, to, 0, 0, number);
    }

    /// `to = number`, by the shorter way where it fits.
    pub(crate) fn number(&mut self, to: u8, number: u64) {
        match i32::try_from(number) {
            Ok(n) => self.imm(Op::Move, to, n),
            Err(_) => self.wide(to, 0, number as u32 as i32, (number >> 32) as u32 as i32),
        }
    }

    /// The load of 64 bits, or of what `source` says that the two halves mean.
    pub(crate) fn wide(&mut self, to: u8, source: u8, low: i32, high: i32) {
        self.put(LOAD_WIDE, to, source, 0, low);
        self.put(0, 0, 0, 0, high);
    }

    /// `to = address of the stack at off`
    pub(crate) fn stack(&mut self, to: u8, off: i16) {
        self.reg(Op::Move, to, FRAME);
        self.imm(Op::Add, to, off.into());
    }

    /// The low 32 bits from the network's order; the others are zero then.
    pub(crate) fn network_order(&mut self, register: u8) {
        self.put(0xdc, register, 0, 0, 32);
    }

    /// Calls a helper of the kernel.
    pub(crate) fn helper(&mut self, number: i32) {
        self.put(0x85, 0, 0, 0, number);
    }

    /// Calls a function of this code.
    pub(crate) fn call(&mut self, function: Label) {
        self.open.push((self.code.len(), function));
        self.put(0x85, 0, 1, 0, 0);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.open.push((self.code.len(), to));
        self.put(0x05, 0, 0, 0, 0);
    }

    /// Jumps if the register and the number are so; the number is widened with its sign.
    pub(crate) fn jump_if(&mut self, register: u8, is: Condition, number: i32, to: Label) {
        self.branches += 1;
        self.open.push((self.code.len(), to));
        self.put(0x05 | is as u8, register, 0, 0, number);
    }

    /// Jumps if the two registers are so.
    pub(crate) fn jump_if_reg(&mut self, register: u8, is: Condition, other: u8, to: Label) {
        self.branches += 1;
        self.open.push((self.code.len(), to));
        self.put(0x0d | is as u8, register, other, 0, 0);
    }

    /// Ends the function with this result.
    pub(crate) fn give(&mut self, result: i32) {
        self.imm(Op::Move, 0, result);
        self.exit();
    }

    /// Ends the function with what is in register 0.
    pub(crate) fn exit(&mut self) {
        self.put(0x95, 0, 0, 0, 0);
    }

    /// The code, with all distances.
    ///
    /// # Errors
    /// A jump is too far for its 16 bits.
    pub(crate) fn finish(mut self) -> Result<Vec<Insn>, Error> {
        for (at, label) in self.open {
            let place = self.places[label.0].unwrap_or_default();
            let distance = place as i64 - at as i64 - 1;
            let insn = &mut self.code[at];
            let too_far = |_| Error::TooManyRules("a rule has more values than a jump can pass over".into());
            match insn.code {
                0x85 => insn.imm = i32::try_from(distance).map_err(too_far)?,
                _ => insn.off = i16::try_from(distance).map_err(too_far)?,
            }
        }
        Ok(self.code)
    }
}
