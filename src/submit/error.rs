//! Why an application cannot be submitted.

/// An error in the words of spark-submit, where it has some, so that a user who searches for them finds what Spark's users found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SubmitError {
    text: String,
    /// The words of Spark 3, where Spark 4 has others.
    of_spark_3: Option<String>,
}

impl SubmitError {
    /// An error about what was expected instead.
    pub fn expected(what: &str) -> SubmitError {
        SubmitError::new(format!("expected {what}"))
    }

    pub(super) fn new(text: impl Into<String>) -> SubmitError {
        SubmitError { text: text.into(), of_spark_3: None }
    }

    /// A value is not of the type that Spark's definition of the setting has.
    pub(super) fn mismatch(key: &str, value: &str, kind: &str) -> SubmitError {
        let text = format!(
            "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value '{value}' in the config \"{key}\" is invalid. It should be a/an '{kind}' value."
        );
        SubmitError { text, of_spark_3: Some(format!("{key} should be {kind}, but was {value}")) }
    }

    /// A value is no size, in mebibytes.
    pub(super) fn no_size(key: &str, value: &str) -> SubmitError {
        let units = "Size must be specified as bytes (b), kibibytes (k), mebibytes (m), gibibytes (g), tebibytes (t), or \
                     pebibytes(p). E.g. 50b, 100k, or 250m.";
        let of_spark_3 = Some(format!("{units} ({key} is {value})"));
        let text = SubmitError::mismatch(key, value, "bytes in MiB").text;
        SubmitError { text: format!("{text} ({units})"), of_spark_3 }
    }

    /// A value does not meet a condition of Spark's definition.
    pub(super) fn requirement(key: &str, value: &str, words: &str) -> SubmitError {
        let text =
            format!("[INVALID_CONF_VALUE.REQUIREMENT] The value '{value}' in the config \"{key}\" is invalid. {words}");
        SubmitError { text, of_spark_3: Some(format!("'{value}' in {key} is invalid. {words}")) }
    }

    /// A value is none of those that Spark's definition lists.
    pub(super) fn no_option(key: &str, value: &str, options: &[&str]) -> SubmitError {
        let options = options.join(", ");
        let text = format!(
            "[INVALID_CONF_VALUE.OUT_OF_RANGE_OF_OPTIONS] The value '{value}' in the config \"{key}\" is invalid. It should be one of \
             '{options}'."
        );
        SubmitError {
            text,
            of_spark_3: Some(format!("The value of {key} should be one of {options}, but was {value}")),
        }
    }

    /// In the words of this major version of Spark.
    #[must_use]
    pub fn of_major(self, major: u16) -> SubmitError {
        match self.of_spark_3 {
            Some(text) if major < 4 => SubmitError::new(text),
            _ => self,
        }
    }
}

/// What a step of a submission returns.
pub type Result<T> = std::result::Result<T, SubmitError>;

/// Fails with these words unless a condition holds.
pub(super) fn require(condition: bool, text: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(SubmitError::new(text())) }
}
