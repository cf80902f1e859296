//! Training steps as a framework without tensors runs them.
use std::ffi::CString;
use std::time::Duration;

use tidelog::abi::*;

use tidelog_tests::abi::{Framework, last_error};

pub(crate) const LAYERS: u32 = 8;

/// Parameters that every step updates, activations made forward and used backward, more than fit.
pub(crate) struct Training {
    pub(crate) framework: Framework,
    size: usize,
    step: u32,
}

impl Training {
    pub(crate) fn new(mut framework: Framework, size: usize) -> Self {
        let first = framework.first_number();
        for layer in 0..LAYERS {
            let number = first + layer;
            framework.make(number, size, None);
            framework.sync();
            let name = CString::new(format!("layer.{layer}.weight")).unwrap();
            // SAFETY: the name is NUL-terminated.
            let named = unsafe { tide_session_name(framework.session, number, 1, name.as_ptr()) };
            assert_eq!(named, TIDE_READY);
        }
        Self { framework, size, step: 0 }
    }

    pub(crate) fn steps(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
            self.await_plan();
        }
    }

    /// Runs steps until the session's figures are as wanted, and returns how many.
    pub(crate) fn until(&mut self, most: u32, wanted: impl Fn(&serde_json::Value) -> bool) -> u32 {
        for steps in 1..=most {
            self.step();
            self.await_plan();
            if wanted(&self.framework.stats()) {
                return steps;
            }
        }
        panic!("not within {most} steps: {}", self.framework.stats());
    }

    pub(crate) fn step(&mut self) {
        self.step_with(|_| {});
    }

    /// A step before whose ops other things happen.
    pub(crate) fn step_with(&mut self, mut between: impl FnMut(&mut Framework)) {
        let size = self.size;
        let first = self.framework.first_number();
        // No number is used twice: that of what died in flight is taken still.
        let base = first + LAYERS + self.step * LAYERS;
        self.step += 1;
        self.framework.step(1);
        let mut op = |framework: &mut Framework, index: u32, uses: &[_], made: &[_]| {
            between(framework);
            let (name, kind) =
                if index < LAYERS { ("aten.mm", 7) } else { ("aten.mm_backward", 8) };
            let attempts = if framework.may_refuse() { 100 } else { 1 };
            let ran = (0..attempts).any(|_| framework.op((index.into(), name, kind), uses, made));
            assert!(ran, "{}", last_error());
        };
        for layer in 0..LAYERS {
            let below = (layer > 0).then(|| (base + layer - 1, false));
            let uses: Vec<_> = [(first + layer, false)].into_iter().chain(below).collect();
            op(&mut self.framework, layer, &uses, &[(base + layer, size)]);
        }
        for layer in 0..LAYERS {
            let (index, layer) = (LAYERS + layer, LAYERS - 1 - layer);
            let uses = [(first + layer, true), (base + layer, false)];
            op(&mut self.framework, index, &uses, &[]);
            self.framework.kill(base + layer);
        }
        self.framework.step(0);
    }

    /// Steps go on while a plan is made; here they wait, so that it is no matter of luck which of
    /// them follows it.
    fn await_plan(&self) {
        while self.framework.stats()["planning"] == true {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
