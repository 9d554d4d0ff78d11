//! What answers a review: from its bytes to the bytes of the answer, by the current snapshot and policies.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures::future::BoxFuture;

use super::metrics::ReviewOutcome;
use usher_core::admission::{self, BadReview, Decision, Operation, Review, ValidationContext, Verdict};
use usher_core::ownership::resolve::DriverSource;
use usher_core::policy::Policies;
use usher_core::reason::Reason;
use usher_core::snapshot::{Namespace, Snapshot};
use usher_runtime::clock;
use usher_spark::json::Pruned;
use usher_spark::pod::Pod;
use usher_spark::role::Role;
use usher_spark::text::{is_dns_label, shown};

/// Answers one review.
pub trait Handler: Send + Sync + 'static {
    /// Returns the bytes of the answer, and what to count. If the answer depends on the labels of a namespace that the snapshot does not
    /// have, `find` is called, once.
    fn answer(&self, body: &[u8], find: Find<'_>) -> Result<ReviewResponse, Unobserved>;

    /// Answers a review that is too large, of which only the first bytes are available.
    fn too_large(&self, head: &[u8], find: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        self.answer(head, find)
    }
}

/// Finds a namespace.
pub type Find<'f> = &'f mut dyn FnMut(Arc<str>) -> Lookup;

/// What is known of a review's namespace besides the snapshot.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Nothing yet: the handler returns [`Unobserved`], and is called again.
    None,
    /// It was not found in time: the strictest policy that may match decides.
    Failed,
    Found(Arc<Namespace>),
}

/// The answer depends on the labels of this namespace.
#[derive(Debug)]
pub struct Unobserved(pub Arc<str>);

/// Finds namespaces that the watch may not have shown yet: a namespace is often created just before its first pod.
pub trait Namespaces: Send + Sync + 'static {
    /// The namespace, for a review of this peer; `None` if it is not found. The caller limits the time.
    fn find(&self, name: Arc<str>, peer: IpAddr) -> BoxFuture<'static, Option<Arc<Namespace>>>;
}

/// Whether a decision about the review depends on its policy. Of a review of which only the head was read, this is assumed.
fn is_decided(review: &Review<'_>) -> bool {
    let is_spark = |pod: &Option<Pod<'_>>| pod.as_ref().is_some_and(|pod| pod.role() != Role::Other);
    let is_head = review.pod.is_none();
    (review.is_pod || review.is_status)
        && matches!(review.operation, Operation::Create | Operation::Update)
        && (is_head || is_spark(&review.pod) || is_spark(&review.old))
}

/// States the namespace of a review, if the decision depends on it and the snapshot does not have it.
fn with_namespace<'a>(
    review: Review<'a>,
    snapshot: &Snapshot,
    policies: &Policies,
    find: Find<'_>,
) -> Result<Review<'a>, Unobserved> {
    // API servers send valid names only. An invalid one is not looked up: it would become part of a URL.
    let is_needed = is_decided(&review)
        && is_dns_label(&review.namespace)
        && snapshot.namespace(&review.namespace).is_none()
        && policies.depend_on_labels_of(&review.namespace);
    if !is_needed {
        return Ok(review);
    }
    let name: Arc<str> = (*review.namespace).into();
    match find(name.clone()) {
        Lookup::Found(found) => Ok(Review { found: Some(found), ..review }),
        Lookup::Failed => Ok(review),
        Lookup::None => Err(Unobserved(name)),
    }
}

/// An answer and what to count.
#[derive(Debug)]
pub struct ReviewResponse {
    /// The response's body, or why the request cannot be answered.
    pub body: Result<Vec<u8>, String>,
    /// Operation of the request.
    pub operation: Operation,
    pub outcome: ReviewOutcome,
    /// Reason for the outcome.
    pub reason: Reason,
    /// How the driver was found.
    pub how: Option<DriverSource>,
}

/// What reviews are answered from.
#[derive(Debug)]
pub struct ReviewState {
    /// The current snapshot.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub policies: Arc<ArcSwap<Policies>>,
    /// The user name of spark-usher's own account.
    pub own_account: Arc<ArcSwapOption<String>>,
    /// When the policies changed last, or were first read. `None` when they are fixed.
    pub changed: Arc<ArcSwapOption<Instant>>,
    /// After this time the other replicas have the same policies.
    pub settle: Duration,
}

/// By then every replica has the same policies: kubelets update a ConfigMap on all nodes within a minute or two.
pub const SETTLE: Duration = Duration::from_secs(300);

impl ReviewState {
    fn is_settled(&self) -> bool {
        let changed = self.changed.load();
        changed.as_ref().is_none_or(|changed| clock::instant().duration_since(**changed) >= self.settle)
    }
}

/// The handler of each path, and what they share.
pub struct Handlers {
    /// `/mutate`: the patch for a new pod.
    pub mutate: Arc<dyn Handler>,
    /// `/validate`: validates the created pod, and changes to it.
    pub validate: Arc<dyn Handler>,
    /// `/mutate-and-validate`: both in one call.
    pub admit: Arc<dyn Handler>,
    /// Finds new namespaces.
    pub namespaces: Arc<dyn Namespaces>,
}

impl Handlers {
    /// The handlers that answer from this state.
    pub fn new(state: ReviewState, namespaces: Arc<dyn Namespaces>) -> Handlers {
        let state = Arc::new(state);
        let handler = |prune, whole, by_head| Arc::new(Reviewer { state: state.clone(), prune, whole, by_head });
        Handlers {
            mutate: handler(
                admission::prune,
                |review, policies, context| admission::mutate(review, context.snapshot, policies),
                admission::head::mutate_head,
            ),
            validate: handler(admission::prune_for_validation, admission::validate, admission::head::validate_head),
            admit: handler(admission::prune_for_validation, admission::admit, admission::admit_head),
            namespaces,
        }
    }
}

/// One of the pure functions that decide.
type Decide = for<'a> fn(&Review<'a>, &'a Policies, ValidationContext<'_>) -> Decision<'a>;

/// Answers the reviews of one path.
struct Reviewer {
    state: Arc<ReviewState>,
    prune: for<'a> fn(&'a [u8]) -> Pruned<'a>,
    whole: Decide,
    /// Decides about a review that exceeds a limit of size or of the parser, of which only the head is read.
    by_head: Decide,
}

impl Handler for Reviewer {
    fn answer(&self, body: &[u8], find: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        match admission::parse(&(self.prune)(body)) {
            Ok(review) => self.decide(review, find, self.whole),
            Err(BadReview::TooMany) => self.too_large(body, find),
            Err(bad) => Ok(ReviewResponse::bad(&bad)),
        }
    }

    fn too_large(&self, head: &[u8], find: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        match admission::head::parse(head) {
            Ok(review) => self.decide(review, find, self.by_head),
            Err(bad) => Ok(ReviewResponse::bad(&bad)),
        }
    }
}

impl Reviewer {
    fn decide(&self, review: Review<'_>, find: Find<'_>, decide: Decide) -> Result<ReviewResponse, Unobserved> {
        let state = &self.state;
        let (snapshot, policies, own_account) =
            (state.snapshot.load(), state.policies.load(), state.own_account.load());
        let review = with_namespace(review, &snapshot, &policies, find)?;
        let own_account = own_account.as_ref().map(|own_account| own_account.as_str());
        let context = ValidationContext { snapshot: &snapshot, own_account, settled: state.is_settled() };
        Ok(ReviewResponse::with(&review, &decide(&review, &policies, context)))
    }
}

impl ReviewResponse {
    fn with(review: &Review<'_>, decision: &Decision<'_>) -> ReviewResponse {
        let outcome = match &decision.verdict {
            Verdict::Deny(_) => ReviewOutcome::Denied,
            Verdict::Allow { mutations } if mutations.is_empty() => ReviewOutcome::Allowed,
            Verdict::Allow { .. } => ReviewOutcome::Patched,
        };
        if outcome == ReviewOutcome::Denied {
            let message = admission::response::denial(decision).unwrap_or_default();
            tracing::info!(
                namespace = shown(&review.namespace), name = shown(review.name.as_deref().unwrap_or_default()),
                policy = decision.policy.unwrap_or_default(), reason = %decision.reason,
                user = shown(&review.requester.username), message, "pod denied"
            );
        }
        tracing::debug!(
            uid = shown(&review.uid), namespace = shown(&review.namespace),
            name = shown(review.name.as_deref().unwrap_or_default()),
            reason = %decision.reason, allowed = decision.is_allowed(), mutations = decision.mutations().len(),
            validated = ?decision.validated, "reviewed"
        );
        ReviewResponse {
            body: Ok(admission::response::write(review, decision)),
            operation: review.operation,
            outcome,
            reason: decision.reason,
            how: decision.driver.as_ref().map(|driver| driver.source),
        }
    }

    fn bad(bad: &BadReview) -> ReviewResponse {
        ReviewResponse {
            body: Err(bad.to_string()),
            operation: Operation::Other,
            outcome: ReviewOutcome::Failed,
            reason: Reason::BadReview,
            how: None,
        }
    }
}
