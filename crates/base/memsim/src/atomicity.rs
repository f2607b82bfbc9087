//! The capacitor that completes writes when the power fails (§4.3).
//!
//! A PCM bit is written by a current over a time. The capacitor has to supply that charge for all
//! bits that are being written, while its voltage stays within a bound. The paper gives 93.5 nF for
//! a bit that becomes 0 (a ramp from 150 µA to 0 in 150 ns, at 1.2 V), and 75 nF for one that
//! becomes 1 (300 µA for 40 ns, at 1.6 V). These are charge / (voltage × droop) with a droop of
//! 10^-4.

use serde::Serialize;

/// The writing of one bit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BitWrite {
    /// The current at the beginning, in amperes.
    pub current_a: f64,
    /// Whether the current falls to 0 during the write, instead of staying the same.
    pub is_ramp: bool,
    /// The time, in seconds.
    pub time_s: f64,
    /// The voltage, in volts.
    pub voltage_v: f64,
}

/// A bit that becomes 0.
pub const WRITE_0: BitWrite =
    BitWrite { current_a: 150e-6, is_ramp: true, time_s: 150e-9, voltage_v: 1.2 };
/// A bit that becomes 1.
pub const WRITE_1: BitWrite =
    BitWrite { current_a: 300e-6, is_ramp: false, time_s: 40e-9, voltage_v: 1.6 };
/// The droop that the numbers of the paper imply, as a part of the voltage.
pub const PAPER_DROOP: f64 = 1e-4;

impl BitWrite {
    /// Returns the charge in coulombs.
    pub fn charge_c(&self) -> f64 {
        self.current_a * self.time_s * if self.is_ramp { 0.5 } else { 1.0 }
    }

    /// Returns the capacitance in farads that supplies one bit.
    pub fn capacitance_f(&self, droop: f64) -> f64 {
        self.charge_c() / (self.voltage_v * droop)
    }

    /// Returns the energy in joules.
    pub fn energy_j(&self) -> f64 {
        self.charge_c() * self.voltage_v
    }
}

/// A capacitor, and the state without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacitor {
    /// Bits that are written at the same time.
    pub bits: u64,
    /// Capacitance in microfarads if all bits become 0.
    pub zeros_uf: f64,
    /// Capacitance in microfarads if all bits become 1.
    pub ones_uf: f64,
    /// The most energy of the writes, in nanojoules.
    pub energy_nj: f64,
    /// Words of 64 bits that a power failure can leave torn without the capacitor.
    pub torn_words: u64,
}

impl Capacitor {
    /// Computes the capacitor for `rows` rows of `row_bits` bits that are written at the same time,
    /// with a voltage that falls by at most `droop` of its value.
    pub fn new(rows: u64, row_bits: u64, droop: f64) -> Self {
        let bits = rows.saturating_mul(row_bits);
        let all = |of_bit: f64, unit: f64| bits as f64 * of_bit / unit;
        Self {
            bits,
            zeros_uf: all(WRITE_0.capacitance_f(droop), 1e-6),
            ones_uf: all(WRITE_1.capacitance_f(droop), 1e-6),
            energy_nj: all(WRITE_0.energy_j().max(WRITE_1.energy_j()), 1e-9),
            torn_words: bits.div_ceil(64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §4.3: 93.5 nF and 75 nF for a bit, 38.4 to 47.8 µF for a row of 512 bits.
    #[test]
    fn a_row_takes_what_the_paper_states() {
        assert!((WRITE_0.capacitance_f(PAPER_DROOP) / 93.5e-9 - 1.0).abs() < 0.005);
        assert!((WRITE_1.capacitance_f(PAPER_DROOP) / 75e-9 - 1.0).abs() < 0.005);
        let row = Capacitor::new(1, 512, PAPER_DROOP);
        assert!((row.ones_uf - 38.4).abs() < 0.01 && (row.zeros_uf - 47.8).abs() < 0.3, "{row:?}");
        assert_eq!(row.torn_words, 8);
        let two = Capacitor::new(2, 512, 2.0 * PAPER_DROOP);
        assert!((two.ones_uf - row.ones_uf).abs() < 1e-9);
    }
}
