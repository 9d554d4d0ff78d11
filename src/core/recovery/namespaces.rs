//! The namespaces that metrics and costs name: a bounded number of them, because every one is a series.

use std::sync::Arc;

/// At most this many namespaces have a name of their own; the others count as [`OTHER`].
pub const MAX_NAMESPACES: usize = 200;
/// The other namespaces; no namespace is called so.
pub const OTHER: &str = "(other)";

/// The names under which namespaces are counted: the first [`MAX_NAMESPACES`] have their own, because a counter cannot move to
/// another one. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct CountedNamespaces(imbl::OrdSet<Arc<str>>);

impl CountedNamespaces {
    /// The name under which a namespace is counted.
    pub fn name(&mut self, namespace: &str) -> Arc<str> {
        if let Some(known) = self.0.get(namespace) {
            return known.clone();
        }
        if self.0.len() >= MAX_NAMESPACES {
            return OTHER.into();
        }
        let name: Arc<str> = namespace.into();
        self.0.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_above_the_limit_share_a_name() {
        let mut counted = CountedNamespaces::default();
        for number in 0..MAX_NAMESPACES {
            let name = format!("n{number}");
            assert_eq!(*counted.name(&name), *name);
        }
        assert_eq!(&*counted.name("one-more"), OTHER);
        assert_eq!(&*counted.name("n7"), "n7", "a name that was given stays");
    }
}
