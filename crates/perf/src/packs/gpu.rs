//! The description of an accelerator and of its node, as far as times depend on it: `gpu.txt` of a system's
//! folder. Times of operations that were measured are scaled with it beyond their range, and the roofline
//! is made of nothing else.

use super::PackError;
use std::path::Path;

/// What an accelerator can do at best.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Bytes that its memory moves in a second.
    pub memory_bandwidth: f64,
    /// Share of that which simple kernels reach.
    pub memory_efficiency: f64,
    /// What a simple kernel takes beside moving bytes, in microseconds.
    pub kernel_us: f64,
    /// Floating-point operations of 16 bits in a second.
    pub flops_16: f64,
    /// Of 8 bits; none if it has none.
    pub flops_8: Option<f64>,
    /// Of 4 bits.
    pub flops_4: Option<f64>,
    /// Accelerators of a node.
    pub gpus_per_node: u32,
    /// Bytes a second to another accelerator of the node, in one direction.
    pub intra_node_bandwidth: f64,
    /// Bytes a second to another node.
    pub inter_node_bandwidth: f64,
    /// What a message from one accelerator to another takes beside its bytes, in microseconds.
    pub p2p_us: f64,
    /// Compute capability, as in sm_90.
    pub sm: u32,
    /// Its memory in GiB, where the file says so: of the accelerators with packs it is known by their name.
    pub memory_gib: Option<f64>,
}

/// Keys of the file, each with the least and the largest value: bounds beyond all hardware, within which no time is
/// without end.
const KEYS: [(&str, f64, f64); 12] = [
    ("memory_bandwidth", 1e6, 1e20),
    ("memory_efficiency", 0.001, 1.0),
    ("kernel_us", 0.0, 1e6),
    ("flops_16", 1e6, 1e24),
    ("flops_8", 1e6, 1e24),
    ("flops_4", 1e6, 1e24),
    ("gpus_per_node", 1.0, 1e6),
    ("intra_node_bandwidth", 1e3, 1e20),
    ("inter_node_bandwidth", 1e3, 1e20),
    ("p2p_us", 0.0, 1e6),
    ("sm", 1.0, 1e4),
    ("memory_gib", 1.0, 1_048_576.0),
];

impl Gpu {
    /// Reads the text of the file `name`: a key and a number in each line. `#` begins a remark.
    ///
    /// # Errors
    /// A line that is none of this, or a key that is missing.
    pub fn parse(name: &str, text: &str) -> Result<Gpu, PackError> {
        let mut values: [Option<f64>; KEYS.len()] = [None; KEYS.len()];
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong =
                |what: &str| PackError::new(name, format!("line {}: got {line:?}; {what}", number + 1));
            let (key, value) =
                line.split_once([' ', '\t']).ok_or_else(|| wrong("allowed is a key and a number"))?;
            let at = KEYS.iter().position(|known| known.0 == key);
            let at = at.ok_or_else(|| wrong(&format!("allowed are {}", KEYS.map(|key| key.0).join(", "))))?;
            let (_, least, most) = KEYS[at];
            let value: f64 = value.trim().parse().unwrap_or(f64::NAN);
            if !(least..=most).contains(&value) {
                return Err(wrong(&format!("the value must be a number from {least:?} to {most:?}")));
            }
            if ["gpus_per_node", "sm"].contains(&key) && value.fract() != 0.0 {
                return Err(wrong("the value must be a whole number"));
            }
            if values[at].is_some() {
                return Err(wrong("the key is given twice"));
            }
            values[at] = Some(value);
        }
        let needed =
            |at: usize| values[at].ok_or_else(|| PackError::new(name, format!("{} is missing", KEYS[at].0)));
        Ok(Gpu {
            memory_bandwidth: needed(0)?,
            memory_efficiency: needed(1)?,
            kernel_us: needed(2)?,
            flops_16: needed(3)?,
            flops_8: values[4],
            flops_4: values[5],
            gpus_per_node: needed(6)? as u32,
            intra_node_bandwidth: needed(7)?,
            inter_node_bandwidth: needed(8)?,
            p2p_us: needed(9)?,
            sm: needed(10)? as u32,
            memory_gib: values[11],
        })
    }

    /// Reads a file of this format.
    ///
    /// # Errors
    /// It cannot be read, or is not one.
    pub fn read(file: &Path) -> Result<Gpu, PackError> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| PackError::new(&name, error.to_string()))?;
        Gpu::parse(&name, &text)
    }

    /// Microseconds of a kernel that does nothing but move `bytes`.
    pub fn memory_us(&self, bytes: f64) -> f64 {
        bytes / (self.memory_bandwidth * self.memory_efficiency) * 1e6 + self.kernel_us
    }

    /// Floating-point operations in a second for operands of `bits`; the next wider ones that it has.
    pub fn flops(&self, bits: u32) -> f64 {
        let eight = self.flops_8.unwrap_or(self.flops_16);
        match bits {
            0..=4 => self.flops_4.unwrap_or(eight),
            5..=8 => eight,
            _ => self.flops_16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "memory_bandwidth 4.8e12\nmemory_efficiency 0.8\nkernel_us 3\nflops_16 989e12 # dense\n\
                        flops_8 1978e12\ngpus_per_node 8\nintra_node_bandwidth 450e9\ninter_node_bandwidth 50e9\n\
                        p2p_us 10\nsm 90\n";

    #[test]
    fn figures_of_an_h200() {
        let gpu = Gpu::parse("gpu.txt", TEXT).unwrap();
        // 3.84 MB at 80 % of 4.8 TB/s take a microsecond, and the kernel takes three.
        assert_eq!(gpu.memory_us(3.84e6), 4.0);
        // Tabs, and the mark that some editors put before a text, mean nothing.
        assert_eq!(Gpu::parse("gpu.txt", &format!("\u{feff}{}", TEXT.replace(' ', "\t"))).unwrap(), gpu);
        // It has no units of four bits: such operands run on those of eight.
        assert_eq!((gpu.flops(16), gpu.flops(8), gpu.flops(4)), (989e12, 1978e12, 1978e12));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, what) in [
            (TEXT.replace("sm 90", "sm x"), "line 10"),
            (TEXT.replace("sm 90", "sm 90.5"), "whole number"),
            (TEXT.replace("sm 90", "ms 90"), "allowed are memory_bandwidth"),
            (TEXT.replace("sm 90", ""), "sm is missing"),
            (TEXT.replace("flops_16 989e12", "flops_16 -1"), "from 1000000.0 to 1e24"),
            (TEXT.replace("sm 90", "sm 90\nsm 80"), "given twice"),
        ] {
            let error = Gpu::parse("gpu.txt", &text).unwrap_err();
            assert!(error.message.contains(what), "{error}");
        }
    }
}
