//! Python's `strftime`, for templates that write the date into a prompt. In UTC, and without locales: English names.

/// Days and seconds of an instant, as templates write them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DateTime {
    year: i64,
    month: u32,
    day: u32,
    /// Seconds since midnight.
    seconds: u32,
    /// Days since Sunday.
    weekday: u32,
    /// Days since the first of January.
    day_of_year: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// Days of all months before one, in a year that is no leap year.
const DAYS_BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

impl DateTime {
    /// The instant so many seconds after the beginning of 1970.
    pub(super) fn from_unix(seconds: u64) -> DateTime {
        let (mut days, seconds) = (seconds / 86_400, (seconds % 86_400) as u32);
        // 1970 began on a Thursday.
        let weekday = ((days + 4) % 7) as u32;
        let mut year = 1970;
        // Whole cycles of the calendar first, so that the rest is short.
        year += (days / 146_097) as i64 * 400;
        days %= 146_097;
        let length = |year| if is_leap(year) { 366 } else { 365 };
        while days >= length(year) {
            days -= length(year);
            year += 1;
        }
        let day_of_year = days as u32;
        let leap = |month: usize| u32::from(is_leap(year) && month >= 2);
        let before = |month: usize| DAYS_BEFORE[month] + leap(month);
        let month = (0..12).rev().find(|&month| before(month) <= day_of_year).unwrap_or(0);
        let day = day_of_year - before(month) + 1;
        DateTime { year, month: month as u32 + 1, day, seconds, weekday, day_of_year }
    }

    /// The instant in a format.
    ///
    /// # Errors
    /// A directive that is not known.
    pub(super) fn format(&self, format: &str) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut directive = rest.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = rest.next();
            }
            let directive = directive.ok_or_else(|| format!("\"{format}\" ends within a directive"))?;
            text.push_str(
                &self
                    .directive(directive, unpadded)
                    .ok_or_else(|| format!("\"{format}\": the directive %{directive} is not known here"))?,
            );
        }
        Ok(text)
    }

    fn directive(&self, directive: char, unpadded: bool) -> Option<String> {
        let (month, weekday) = (MONTHS[self.month as usize - 1], DAYS[self.weekday as usize]);
        let hour = self.seconds / 3600;
        let number =
            |value: u32, width: usize| if unpadded { value.to_string() } else { format!("{value:0width$}") };
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => number((self.year % 100) as u32, 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'e' => format!("{:2}", self.day),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(self.seconds / 60 % 60, 2),
            'S' => number(self.seconds % 60, 2),
            'f' => "000000".into(),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'j' => number(self.day_of_year + 1, 3),
            'B' => month.into(),
            'b' | 'h' => month[..3].into(),
            'A' => weekday.into(),
            'a' => weekday[..3].into(),
            'w' => self.weekday.to_string(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{:02}:{:02}", self.seconds / 60 % 60, self.seconds % 60),
            'R' => format!("{hour:02}:{:02}", self.seconds / 60 % 60),
            'D' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'Z' | 'z' => String::new(),
            'n' => "\n".into(),
            't' => "\t".into(),
            '%' => "%".into(),
            _ => return None,
        })
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        DateTime::from_unix(seconds).format(format).unwrap()
    }

    /// Python 3.11: `datetime.fromtimestamp(SECONDS, timezone.utc).strftime(FORMAT)`.
    #[test]
    fn as_python_writes_it() {
        assert_eq!(at(0, "%Y-%m-%d %H:%M:%S %a %j"), "1970-01-01 00:00:00 Thu 001");
        assert_eq!(at(951_782_400, "%d %B %Y, %A"), "29 February 2000, Tuesday");
        assert_eq!(at(951_868_799, "%d %b %y %I:%M %p %-d/%-m"), "29 Feb 00 11:59 PM 29/2");
        assert_eq!(at(4_107_542_399, "%F %T"), "2100-02-28 23:59:59");
        assert_eq!(at(4_107_542_400, "%F %j %%"), "2100-03-01 060 %");
        assert_eq!(at(1_735_689_599, "%F %j %w"), "2024-12-31 366 2");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let date = DateTime::from_unix(0);
        assert!(date.format("%Q").unwrap_err().contains("%Q is not known"));
        assert!(date.format("100%").unwrap_err().contains("ends within"));
    }
}
