//! What the driver's container runs (`DriverCommandFeatureStep`).

use serde_json::json;

use super::basic::{is_local, upload};
use crate::draft::{Draft, SubmitContext, push};
use crate::error::Result;
use crate::options::{NO_RESOURCE, Resource};

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let (kind, resource) = match &context.app.resource {
        // A local JAR travels in `spark.jars`.
        Resource::Java(jar) if is_local(jar) => ("java", NO_RESOURCE.to_owned()),
        Resource::Java(jar) => ("java", jar.clone()),
        Resource::None => ("java", NO_RESOURCE.to_owned()),
        Resource::Python(file) if is_local(file) => ("python", upload(context, file, draft)?),
        Resource::Python(file) => ("python", file.clone()),
        Resource::R(file) => ("r", file.clone()),
    };
    if kind == "python" {
        let of_all = ("spark.pyspark.python", "PYSPARK_PYTHON");
        let of_driver = ("spark.pyspark.driver.python", "PYSPARK_DRIVER_PYTHON");
        for (variable, from) in [(of_all.1, &[of_all][..]), (of_driver.1, &[of_driver, of_all])] {
            // Settings precede variables.
            let set = from.iter().find_map(|(key, _)| context.conf().get(key));
            let python = set.or_else(|| from.iter().find_map(|(_, name)| context.env.variables.get(name)));
            if let Some(python) = python {
                draft.env(variable, python);
            }
        }
    }
    let mut args = vec!["driver".to_owned()];
    if let Some(user) = &context.app.proxy_user {
        args.extend(["--proxy-user".to_owned(), user.clone()]);
    }
    args.extend(["--properties-file", "/opt/spark/conf/spark.properties", "--class"].map(str::to_owned));
    args.push(context.app.main_class.clone());
    args.push(resource);
    args.extend(context.app.args.iter().cloned());
    // After those of the template.
    args.into_iter().for_each(|arg| push(&mut draft.container, "args", json!(arg)));
    draft.property("spark.kubernetes.resource.type", kind);
    Ok(())
}
