//! The store: objects as text, one revision counter, and a bounded log of changes per collection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use serde_json::Value;
use tokio::sync::Notify;

use super::error::{ApiError, Result};
use super::outline::Outline;
use super::resource::{Collection, Resource};
use usher_spark::json;

/// How often a patch or a deletion is tried on conflicts.
pub(super) const TRIES: usize = 5;

/// Number of changes in a collection's log; watches of older revisions get a 410.
const LOG: usize = 5_000;

/// Namespace (empty for cluster-scoped objects) and name.
pub(super) type Key = (String, String);

/// A stored object.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) revision: u64,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) text: Box<str>,
    outline: OnceLock<Box<Outline>>,
}

impl Stored {
    fn new(object: &Value, revision: u64) -> Stored {
        let labels =
            json::entries(object, &["metadata", "labels"]).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Stored {
            key: key_of(object),
            uid: json::text(object, &["metadata", "uid"]).to_owned(),
            revision,
            labels,
            text: object.to_string().into_boxed_str(),
            outline: OnceLock::new(),
        }
    }

    /// Parses the object.
    pub(super) fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// The pod that this object is, without its containers; parsed at the first call.
    pub(super) fn outline(&self) -> &Outline {
        self.outline.get_or_init(|| Box::new(Outline::new(&self.text)))
    }
}

/// Type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Added,
    Modified,
    Deleted,
}

/// A logged change; `before` shows whether the object entered or left the view of a filtered watch.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) happened: Happened,
    pub(super) object: Arc<Stored>,
    pub(super) before: Option<Arc<Stored>>,
}

/// Work item of the garbage collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum GarbageWork {
    /// An object with owners, or one that is being deleted and held by a finalizer of the collector.
    Check(Collection, Key),
    /// The owner with this uid may have been deleted.
    OwnerDeleted(String),
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<Key, Arc<Stored>>,
    log: VecDeque<Change>,
    /// The newest revision that was dropped from the log.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    kept: BTreeMap<Collection, Kept>,
    /// Dependents by the uid of an owner.
    owned: BTreeMap<String, BTreeSet<(Collection, Key)>>,
    garbage_work: Vec<GarbageWork>,
}

#[derive(Debug)]
pub(super) struct Store {
    inner: Mutex<Inner>,
    /// Wakes all waiters after a change, in the order in which they wait, so that a simulation is reproducible.
    notify: Notify,
}

/// Namespace and name of an object.
pub(super) fn key_of(object: &Value) -> Key {
    (json::text(object, &["metadata", "namespace"]).to_owned(), json::text(object, &["metadata", "name"]).to_owned())
}

impl Store {
    pub(super) fn new() -> Store {
        Store { inner: Mutex::default(), notify: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until the revision is newer than this one.
    pub(super) async fn newer_than(&self, revision: u64) {
        loop {
            let mut changed = std::pin::pin!(self.notify.notified());
            changed.as_mut().enable(); // Before reading the revision, so that no change is missed in between.
            if self.revision() > revision {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.lock().revision
    }

    pub(super) fn get(&self, collection: &Collection, key: &Key) -> Option<Arc<Stored>> {
        self.lock().kept.get(collection)?.objects.get(key).cloned()
    }

    /// Lists objects in order of their keys, starting after `after`, with the revision of the list.
    pub(super) fn list(
        &self,
        collection: &Collection,
        namespace: Option<&str>,
        after: Option<&Key>,
    ) -> (Vec<Arc<Stored>>, u64) {
        use std::ops::Bound;
        let inner = self.lock();
        let from = match (after, namespace) {
            (Some(key), _) => Bound::Excluded(key.clone()),
            (None, Some(namespace)) => Bound::Included((namespace.to_owned(), String::new())),
            (None, None) => Bound::Unbounded,
        };
        let kept = inner
            .kept
            .get(collection)
            .into_iter()
            .flat_map(|kept| kept.objects.range((from.clone(), Bound::Unbounded)));
        let within = kept.take_while(|((ns, _), _)| namespace.is_none_or(|namespace| namespace == ns));
        (within.map(|(_, object)| object.clone()).collect(), inner.revision)
    }

    /// Changes after a revision, oldest first. The error states how far back the log reaches.
    pub(super) fn changes(&self, collection: &Collection, after: u64) -> Result<Vec<Change>> {
        let inner = self.lock();
        let Some(kept) = inner.kept.get(collection) else { return Ok(Vec::new()) };
        if after < kept.forgotten {
            return Err(ApiError::expired(after, kept.forgotten));
        }
        let start = kept.log.partition_point(|change| change.revision <= after);
        Ok(kept.log.range(start..).cloned().collect())
    }

    /// Discards all changes, as a compaction does: watches of older revisions get a 410.
    pub(super) fn compact(&self) {
        let mut inner = self.lock();
        let revision = inner.revision;
        for kept in inner.kept.values_mut() {
            kept.log.clear();
            kept.forgotten = revision;
        }
    }

    /// Stores a new object.
    pub(super) fn create(&self, resource: &Resource, mut object: Value) -> Result<Arc<Stored>> {
        let mut inner = self.lock();
        let (collection, key) = (resource.collection(), key_of(&object));
        if inner.kept.get(&collection).is_some_and(|kept| kept.objects.contains_key(&key)) {
            return Err(ApiError::already_exists(&resource.qualified(), &key.1));
        }
        let stored = inner.put(&collection, &mut object, Happened::Added, None);
        self.notify(inner);
        Ok(stored)
    }

    /// Replaces an object that still has the revision that was read. A replacement without changes is not written.
    pub(super) fn replace(&self, resource: &Resource, read: &Stored, mut object: Value) -> Result<Arc<Stored>> {
        let mut inner = self.lock();
        let collection = resource.collection();
        let Some(present) = inner.kept.get(&collection).and_then(|kept| kept.objects.get(&read.key)).cloned() else {
            return Err(ApiError::not_found(&resource.qualified(), &read.key.1));
        };
        if present.revision != read.revision {
            return Err(ApiError::modified(&resource.qualified(), &read.key.1));
        }
        json::set(&mut object, &["metadata", "resourceVersion"], present.revision.to_string());
        if *present.text == *object.to_string() {
            return Ok(present);
        }
        let stored = inner.put(&collection, &mut object, Happened::Modified, Some(present));
        self.notify(inner);
        Ok(stored)
    }

    /// Removes an object that still has the revision that was read.
    pub(super) fn remove(&self, resource: &Resource, read: &Stored) -> Result<Arc<Stored>> {
        let mut inner = self.lock();
        let collection = resource.collection();
        let revision = inner.revision + 1;
        let Some(kept) = inner.kept.get_mut(&collection) else {
            return Err(ApiError::not_found(&resource.qualified(), &read.key.1));
        };
        match kept.objects.get(&read.key) {
            Some(present) if present.revision == read.revision => {}
            Some(_) => return Err(ApiError::modified(&resource.qualified(), &read.key.1)),
            None => return Err(ApiError::not_found(&resource.qualified(), &read.key.1)),
        }
        kept.objects.remove(&read.key);
        let mut object = read.value();
        json::set(&mut object, &["metadata", "resourceVersion"], revision.to_string());
        let gone = Arc::new(Stored::new(&object, revision));
        let before = Arc::new(Stored::new(&read.value(), read.revision));
        inner.log(&collection, Happened::Deleted, gone.clone(), Some(before));
        inner.revision = revision;
        for owner in owners(&object) {
            inner.remove_dependent(&owner, &(collection.clone(), read.key.clone()));
        }
        if inner.owned.get(&read.uid).is_some_and(|owned| !owned.is_empty()) {
            inner.garbage_work.push(GarbageWork::OwnerDeleted(read.uid.clone()));
        }
        self.notify(inner);
        Ok(gone)
    }

    /// Returns the work items of the garbage collector since the last call.
    pub(super) fn garbage_work(&self) -> Vec<GarbageWork> {
        std::mem::take(&mut self.lock().garbage_work)
    }

    /// Objects that name this uid as an owner.
    pub(super) fn owned_by(&self, uid: &str) -> Vec<(Collection, Key)> {
        self.lock().owned.get(uid).into_iter().flatten().cloned().collect()
    }

    fn notify(&self, inner: MutexGuard<'_, Inner>) {
        drop(inner);
        self.notify.notify_waiters();
    }
}

impl Inner {
    fn put(
        &mut self,
        collection: &Collection,
        object: &mut Value,
        happened: Happened,
        before: Option<Arc<Stored>>,
    ) -> Arc<Stored> {
        self.revision += 1;
        json::set(object, &["metadata", "resourceVersion"], self.revision.to_string());
        let stored = Arc::new(Stored::new(object, self.revision));
        let place = (collection.clone(), stored.key.clone());
        for owner in before.iter().flat_map(|before| owners(&before.value())) {
            self.remove_dependent(&owner, &place);
        }
        let owners = owners(object);
        if !owners.is_empty() || json::at(object, &["metadata", "deletionTimestamp"]).is_some() {
            self.garbage_work.push(GarbageWork::Check(place.0.clone(), place.1.clone()));
        }
        for owner in owners {
            self.owned.entry(owner).or_default().insert(place.clone());
        }
        let kept = self.kept.entry(collection.clone()).or_default();
        kept.objects.insert(stored.key.clone(), stored.clone());
        self.log(collection, happened, stored.clone(), before);
        stored
    }

    fn remove_dependent(&mut self, owner: &str, place: &(Collection, Key)) {
        if let Some(owned) = self.owned.get_mut(owner) {
            owned.remove(place);
            if owned.is_empty() {
                self.owned.remove(owner);
            }
        }
    }

    fn log(&mut self, collection: &Collection, happened: Happened, object: Arc<Stored>, before: Option<Arc<Stored>>) {
        let kept = self.kept.entry(collection.clone()).or_default();
        kept.log.push_back(Change { revision: object.revision, happened, object, before });
        if kept.log.len() > LOG
            && let Some(oldest) = kept.log.pop_front()
        {
            kept.forgotten = oldest.revision;
        }
    }
}

fn owners(object: &Value) -> Vec<String> {
    let references = json::list(object, &["metadata", "ownerReferences"]);
    references.iter().map(|owner| json::text(owner, &["uid"]).to_owned()).collect()
}
