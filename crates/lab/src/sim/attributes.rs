//! A caller and an access, in the words of authorizers.
use super::gojson;
use super::status::Failure;

/// Somebody with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name, for example `admin` or `system:serviceaccount:ns:name`.
    pub name: String,
    /// Groups; `system:authenticated` is added.
    pub groups: Vec<String>,
}

/// An access, in the words of authorizers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SimulatedAccess {
    pub(crate) verb: String,
    pub(crate) group: String,
    /// Empty for paths.
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) path: String,
}

impl SimulatedAccess {
    pub(crate) fn qualified(&self) -> String {
        let mut out = self.resource.clone();
        if !self.group.is_empty() {
            out = format!("{out}.{}", self.group);
        }
        if !self.subresource.is_empty() {
            out = format!("{out}/{}", self.subresource);
        }
        out
    }

    /// The 403 of upstream. Source: apiserver `pkg/endpoints/handlers/responsewriters/errors.go`.
    pub(crate) fn forbidden(&self, user: &User) -> Failure {
        let who = &user.name;
        if self.resource.is_empty() {
            let message = format!(
                "forbidden: User {who:?} cannot {} path {:?}",
                self.verb, self.path
            );
            return Failure::new(403, "Forbidden", message).details("{}");
        }
        let qualified = if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        };
        let sub = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        let object = if self.name.is_empty() {
            qualified
        } else {
            format!("{qualified} {:?}", self.name)
        };
        let scope = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", self.namespace)
        };
        let message = format!(
            "{object} is forbidden: User {who:?} cannot {} resource \"{}{sub}\" \
             in API group {:?} {scope}",
            self.verb, self.resource, self.group
        );
        let mut details = String::new();
        if !self.name.is_empty() {
            details += &[r#""name":"#, &gojson::string(&self.name), ","].concat();
        }
        if !self.group.is_empty() {
            details += &[r#""group":""#, &self.group, r#"","#].concat();
        }
        Failure::new(403, "Forbidden", message)
            .details(format!(r#"{{{details}"kind":"{}"}}"#, self.resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_use_upstreams_words() {
        let bob = User {
            name: "bob".to_owned(),
            groups: vec![],
        };
        let text = SimulatedAccess {
            verb: "list".to_owned(),
            resource: "pods".to_owned(),
            ..SimulatedAccess::default()
        }
        .forbidden(&bob)
        .status();
        assert!(
            text.contains(concat!(
                r#"pods is forbidden: User \"bob\" cannot list resource \"pods\" "#,
                r#"in API group \"\" at the cluster scope"#
            )),
            "{text}"
        );
    }
}
