//! Numbers for people: thousands separated, no more digits than a table cell can use. Files never go
//! through here.

/// A whole number with separated thousands.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A quantity in at most nine characters below 10⁹: two decimals for small ones, none for large ones.
pub(crate) fn short(x: f64) -> String {
    let decimals = match x.abs() {
        x if x < 999.995 => 2,
        x if x < 99_999.95 => 1,
        _ => 0,
    };
    if x.abs() >= 1e9 {
        return format!("{x:.2e}");
    }
    let text = format!("{:.decimals$}", x.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    // `whole` holds digits only and stands below 10^9.
    let whole = grouped(whole.parse().unwrap_or_default());
    let sign = if x < 0.0 { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

/// A part of a whole, in percent.
pub(crate) fn percent(x: f64) -> String {
    format!("{:.2} %", x * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1000, 144_793_823].map(grouped), ["0", "999", "1,000", "144,793,823"]);
    }

    #[test]
    fn digits_follow_the_size() {
        let got = [0.0, 12.001, 999.99, 999.996, 1213.823, 99_999.96, 1_009_454.21, 2.5e9].map(short);
        assert_eq!(got, ["0.00", "12.00", "999.99", "1,000.0", "1,213.8", "100,000", "1,009,454", "2.50e9"]);
    }
}
