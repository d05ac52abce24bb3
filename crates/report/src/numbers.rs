//! Numbers for people: thousands separated, no more digits than a table cell can use. One rule for every
//! cell, so that columns have a known width and fit a terminal. Files never go through here: they hold exact
//! values.

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

/// From here on, millions are the unit.
const MANY: f64 = 1e7;

/// A quantity that is not negative, in at most nine characters: three decimals for small ones, none for
/// large ones.
pub fn short(x: f64) -> String {
    if x >= MANY {
        return millions(x);
    }
    let decimals = match x {
        0.0 => 2,
        x if x < 0.9995 => 3,
        x if x < 999.995 => 2,
        x if x < 99_999.95 => 1,
        _ => 0,
    };
    let text = format!("{x:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    // `whole` holds at most eight digits and nothing else.
    let whole = grouped(whole.parse().unwrap_or_default());
    if fraction.is_empty() { whole } else { format!("{whole}.{fraction}") }
}

/// A count in at most nine characters.
pub(crate) fn short_count(n: u64) -> String {
    if n as f64 >= MANY { millions(n as f64) } else { grouped(n) }
}

/// Ten million and more.
fn millions(x: f64) -> String {
    if x < 1e11 { format!("{:.2}M", x / 1e6) } else { format!("{x:.2e}") }
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
        let got = [0.0, 0.0532, 12.001, 999.99, 999.996, 1213.823, 99_999.96, 1_009_454.21].map(short);
        assert_eq!(got, ["0.00", "0.053", "12.00", "999.99", "1,000.0", "1,213.8", "100,000", "1,009,454"]);
        assert_eq!([9_999_999.4, 12_345_678.0, 2.5e11].map(short), ["9,999,999", "12.35M", "2.50e11"]);
        assert_eq!([9_999_999, 144_793_823].map(short_count), ["9,999,999", "144.79M"]);
    }
}
