//! One immutable snapshot of every Spark application in the cluster, which the webhook and the controller share.
//!
//! One writer applies [`Change`]s and publishes; readers hold an `Arc<Snapshot>` and never wait. The maps are
//! persistent (imbl), so publishing costs a few pointers and an event costs the same with ten pods as with a hundred
//! thousand. Memory is bounded by pods, never by events: deleted objects are not remembered here.
//!
//! Applications are keyed by namespace and app selector. Pods without Spark labels that drive an application (a
//! notebook, a worker) are *referenced*: read by name because an executor names them, not because of a label.

mod app;
mod change;
mod creator;
mod driver_state;
mod driver_view;
mod facts;
mod generated;
mod group;
mod index;
mod node;
mod owner;
mod pod_index;
mod proof;
mod quota;
mod related;
mod stage;
mod state;
mod store;
mod walk;

pub use app::Application;
pub(crate) use change::may_exist;
pub use change::{Absence, Change, Delta, Ended, PodChange, RemovedExecutor};
pub use driver_view::{DriverView, DriverViewKey};
pub use facts::{
    DriverPhase, DriverPod, Executor, ExecutorKey, MAX_ENTRY, MetadataEntry, Namespace, ObservedPod, SchedulingFields,
    SchedulingKeys, ServiceOwner, Template, driver_host,
};
pub use generated::signed_name;
pub use group::{Group, GroupApi, GroupKey, ServedApis, group_size};
pub use index::{CreatorIndex, TemplateCounts};
pub(crate) use index::{is_orphan, is_undeleted};
pub use node::{Node, Share, room};
pub use owner::{Owner, OwnerKind, Workload, WorkloadKey};
pub use proof::{SignedExecutor, sign_driver};
pub use quota::{Exceeded, MAX_QUOTAS, Quota};
pub use related::{RelatedChange, Watched};
pub use stage::Stage;
pub use state::{Conf, ReferencedPod, SchedulerMessages, Snapshot};
pub use store::{Batch, Notify, Store, SubscriberId};
pub use walk::{Cursor, Labelled, Listed};
