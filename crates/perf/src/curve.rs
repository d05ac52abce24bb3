//! Lines through measured points.

use crate::PerfError;

/// Values over one axis, linear between its points. Beyond the first and the last the line goes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    axis: Vec<f64>,
    values: Vec<f64>,
}

impl Curve {
    /// A checked curve; errors name the axis and the values as told.
    pub fn new(
        axis_name: &'static str,
        axis: Vec<f64>,
        values_name: &'static str,
        values: Vec<f64>,
    ) -> Result<Curve, PerfError> {
        check_axis(axis_name, &axis)?;
        check_numbers(values_name, &values)?;
        check_count(values_name, values.len(), axis_name, axis.len())?;
        Ok(Curve { axis, values })
    }

    /// The axis and the values.
    pub fn points(&self) -> (&[f64], &[f64]) {
        (&self.axis, &self.values)
    }

    /// The first point of the axis.
    #[inline]
    pub fn first(&self) -> f64 {
        self.axis[0]
    }

    /// The value at `x`, and whether the axis reaches that far.
    #[inline]
    pub fn at(&self, x: f64) -> (f64, bool) {
        let (at, share, inside) = place(&self.axis, x);
        let next = (at + 1).min(self.axis.len() - 1);
        (between(self.values[at], self.values[next], share), inside)
    }
}

/// The point of an axis from which to go on, by which share of the way to the next one, and whether the axis reaches
/// that far.
#[inline]
pub(crate) fn place(axis: &[f64], x: f64) -> (usize, f64, bool) {
    let (first, last) = (axis[0], axis[axis.len() - 1]);
    let inside = first <= x && x <= last;
    if axis.len() == 1 {
        return (0, 0.0, inside);
    }
    let at = axis.partition_point(|&point| point <= x).clamp(1, axis.len() - 1) - 1;
    (at, (x - axis[at]) / (axis[at + 1] - axis[at]), inside)
}

#[inline]
pub(crate) fn between(from: f64, to: f64, share: f64) -> f64 {
    from + (to - from) * share
}

/// The points of an axis: at least one, ascending.
pub(crate) fn check_axis(field: &'static str, axis: &[f64]) -> Result<(), PerfError> {
    check_numbers(field, axis)?;
    if axis.is_empty() {
        return Err(PerfError::new(field, "no values", "are too few: at least 1 is needed"));
    }
    match axis.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            Err(PerfError::new(field, pair[1], format!("must be above the value before ({})", pair[0])))
        }
        None => Ok(()),
    }
}

/// Numbers of at least 0.
pub(crate) fn check_numbers(field: &'static str, values: &[f64]) -> Result<(), PerfError> {
    match values.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
        Some(value) => Err(PerfError::new(field, value, "must be a finite number of at least 0")),
        None => Ok(()),
    }
}

/// As many values as their axis has points.
pub(crate) fn check_count(
    field: &'static str,
    got: usize,
    axis: &str,
    wanted: usize,
) -> Result<(), PerfError> {
    if got == wanted {
        return Ok(());
    }
    Err(PerfError::new(field, format!("{got} values"), format!("must be {wanted}, as many as {axis} has")))
}
