//! `none`: ownership only. The pod keeps its scheduler.

use super::scheduler::{GangScheduler, GroupKeyField, Shape, no_spec, nothing};

/// The row of `none`.
pub static NONE: GangScheduler = GangScheduler {
    kind: "none",
    default_name: None,
    shapes: &[Shape::Pods],
    group_key: GroupKeyField::None,
    queue_key: None,
    more_queue_keys: &[],
    queue_required: false,
    more_keys: &[],
    gang_keys: &[],
    extra_member_harmless: true,
    auto_group_prefix: None,
    accounts: &[],
    groups_by_top_owner: false,
    groups_by_owner: false,
    apis: &[],
    executor: nothing,
    driver: nothing,
    spec: no_spec,
};
