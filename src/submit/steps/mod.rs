//! The steps that make a driver's pod, in Spark's order (`KubernetesDriverBuilder.buildFromFeatures`). Each is a function of the
//! configuration, named after the feature step whose work it does.

mod basic;
mod command;
mod credentials;
mod hadoop;
mod kerberos;
mod local_dirs;
mod network_policy;
mod secrets;
mod service;
mod template;
mod volumes;

use super::draft::{Draft, SubmitContext};
use super::error::Result;

pub(super) use template::{KEY as TEMPLATE_KEY, load};

/// A step, and the name of Spark's class, by which `spark.kubernetes.driver.pod.excludedFeatureSteps` excludes it.
type Step = (&'static str, fn(&SubmitContext<'_>, &mut Draft) -> Result<()>);

const STEPS: [Step; 12] = [
    ("BasicDriverFeatureStep", basic::configure),
    ("DriverKubernetesCredentialsFeatureStep", credentials::configure),
    ("DriverServiceFeatureStep", service::configure),
    ("NetworkPolicyFeatureStep", network_policy::configure),
    ("MountSecretsFeatureStep", secrets::mount),
    ("EnvSecretsFeatureStep", secrets::env),
    ("MountVolumesFeatureStep", volumes::configure),
    ("DriverCommandFeatureStep", command::configure),
    ("HadoopConfDriverFeatureStep", hadoop::configure),
    ("KerberosConfDriverFeatureStep", kerberos::configure),
    ("PodTemplateConfigMapStep", template::configure),
    ("LocalDirsFeatureStep", local_dirs::configure),
];

/// Where Spark's classes are.
const PACKAGE: &str = "org.apache.spark.deploy.k8s.features.";

/// Runs the steps that are not excluded.
pub(super) fn run(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    // Since 4.1.
    let excluded = match context.is_since(4, 1) {
        true => context.conf().list("spark.kubernetes.driver.pod.excludedFeatureSteps"),
        false => Vec::new(),
    };
    let custom = "spark.kubernetes.driver.pod.featureSteps";
    for class in context.conf().list(custom) {
        draft.warnings.push(format!("{class} of {custom} is ignored: it is a Java class"));
    }
    let is_excluded = |name: &str| excluded.iter().any(|class| class.strip_prefix(PACKAGE) == Some(name));
    STEPS.iter().filter(|(name, _)| !is_excluded(name)).try_for_each(|(_, step)| step(context, draft))
}
