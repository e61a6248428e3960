{{- define "watershed.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "watershed.fullname" -}}
{{- $name := include "watershed.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-scoped objects. It contains the namespace, as releases in two namespaces may share a name. */}}
{{- define "watershed.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "watershed.fullname" .) -}}
{{- end -}}

{{- define "watershed.selector" -}}
app.kubernetes.io/name: {{ include "watershed.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "watershed.labels" -}}
{{ include "watershed.labelsWith" (list . dict) }}
{{- end -}}

{{/* The labels of an object, with further ones: a list of the context and a map. */}}
{{- define "watershed.labelsWith" -}}
{{ include "watershed.selector" (index . 0) }}
{{ include "watershed.releaseLabels" . }}
{{- end -}}

{{/* The labels of everything in the release, with further ones, which replace those of commonLabels. */}}
{{- define "watershed.releaseLabels" -}}
{{- with index . 0 -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- with merge dict (index . 1 | default dict) ((index . 0).Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watershed.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "watershed.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name: which one, if none is created" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "watershed.image" -}}
{{- with .Values.image -}}
{{- $repository := required "image.repository: name the image in your registry (--set image.repository=REGISTRY/watershed), as none is published yet" .repository -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "watershed.hostNetwork" -}}
{{- if and (eq .Values.kind "DaemonSet") .Values.daemonSet.hostNetwork -}}true{{- end -}}
{{- end -}}

{{/* The listener is on loopback, so that only programs on the host's network reach it. */}}
{{- define "watershed.loopback" -}}
{{- $is := regexMatch (include "watershed.loopbackPattern" .) .Values.listenAddress -}}
{{- if and $is (include "watershed.hostNetwork" .) -}}true{{- end -}}
{{- end -}}

{{- define "watershed.loopbackPattern" -}}
^(127\.|\[::1\]$)
{{- end -}}

{{- define "watershed.httpsPort" -}}
{{- int .Values.ports.https | default (ternary 16443 6443 (eq (include "watershed.hostNetwork" .) "true")) -}}
{{- end -}}

{{- define "watershed.adminPort" -}}
{{- int .Values.ports.admin | default (ternary 16480 6480 (eq (include "watershed.hostNetwork" .) "true")) -}}
{{- end -}}

{{- define "watershed.adminAddress" -}}
{{- .Values.admin.address | default (ternary "127.0.0.1" .Values.listenAddress (eq (include "watershed.hostNetwork" .) "true")) -}}
{{- end -}}

{{/* The flags of the proxy that the chart sets: a JSON list. */}}
{{- define "watershed.args" -}}
{{- $args := list
      (printf "--listen=%s:%s" .Values.listenAddress (include "watershed.httpsPort" .))
      (printf "--admin-listen=%s:%s" (include "watershed.adminAddress" .) (include "watershed.adminPort" .))
      "--tls-cert=/etc/watershed/tls/tls.crt"
      "--tls-key=/etc/watershed/tls/tls.key" -}}
{{- if .Values.admin.tls -}}
{{- $args = concat $args (list "--admin-tls-cert=/etc/watershed/tls/tls.crt" "--admin-tls-key=/etc/watershed/tls/tls.key") -}}
{{- end -}}
{{- if .Values.admin.tokenSecret.name -}}
{{- $args = append $args (printf "--admin-token-file=/etc/watershed/admin/%s" .Values.admin.tokenSecret.key) -}}
{{- end -}}
{{- if .Values.config -}}
{{- $args = append $args "--config=/etc/watershed/files/config.yaml" -}}
{{- end -}}
{{- if .Values.clientCA -}}
{{- $args = append $args "--client-ca-file=/etc/watershed/files/client-ca.crt" -}}
{{- end -}}
{{- if .Values.validateServiceAccountTokensLocally -}}
{{- $args = append $args "--validate-service-account-tokens-locally" -}}
{{- end -}}
{{- if .Values.refuseInvalidServiceAccountTokens -}}
{{- $args = append $args "--refuse-invalid-service-account-tokens" -}}
{{- end -}}
{{- range .Values.servers -}}
{{- $args = append $args (printf "--server=%s" .) -}}
{{- end -}}
{{- if include "watershed.stateFromReplicas" . -}}
{{- $args = append $args "--state-from=/etc/watershed/files/replicas.yaml" -}}
{{- end -}}
{{- $args = concat $args (list
      (printf "--window-seconds=%d" (int .Values.window.seconds))
      (printf "--window-mib=%d" (int .Values.window.mib))
      (printf "--drain-seconds=%d" (int .Values.drainSeconds))
      (printf "--log-format=%s" .Values.log.format)
      (printf "--log-level=%s" .Values.log.level)) -}}
{{- if ne .Values.kind "DaemonSet" -}}
{{- if .Values.goawayChance -}}
{{- $args = append $args (printf "--goaway-chance=%v" .Values.goawayChance) -}}
{{- end -}}
{{- if .Values.maxConnectionAge -}}
{{- $args = append $args (printf "--max-connection-age=%s" .Values.maxConnectionAge) -}}
{{- end -}}
{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{/* Refuses values that fit their schema, and not each other. */}}
{{- define "watershed.checkValues" -}}
{{- /* Values of labels may have characters that names of objects may not have. */ -}}
{{- if and (not .Values.fullnameOverride) (not (regexMatch "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$" (default "" .Values.nameOverride))) -}}
{{- fail (printf "nameOverride: objects cannot be named after %s. Use small letters, digits and hyphens, or set fullnameOverride" .Values.nameOverride) -}}
{{- end -}}
{{- $https := include "watershed.httpsPort" . -}}
{{- if eq $https (include "watershed.adminPort" .) -}}
{{- fail (printf "ports: the proxy and its admin listener cannot both have port %s. Set ports.https or ports.admin to another one" $https) -}}
{{- end -}}
{{- $address := include "watershed.adminAddress" . -}}
{{- if and (not (include "watershed.hostNetwork" .)) (regexMatch (include "watershed.loopbackPattern" .) $address) -}}
{{- fail (printf "admin.address: the kubelet's probes do not reach %s in a pod. Leave admin.address empty, with a listenAddress of all addresses, or run a DaemonSet with daemonSet.hostNetwork" $address) -}}
{{- end -}}
{{- if or .Values.daemonSet.hostPort .Values.daemonSet.hostNetwork -}}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 .Values.daemonSet.updateStrategy -}}
{{- if and (eq .Values.kind "DaemonSet") (not (has (toString $surge) (list "0" "0%"))) -}}
{{- fail (printf "daemonSet.updateStrategy: maxSurge must be 0 with hostPort or hostNetwork, not %v. Both pods would need the node's port. Set maxUnavailable" $surge) -}}
{{- end -}}
{{- end -}}
{{- with .Values.daemonSet.updateStrategy -}}
{{- if and (eq $.Values.kind "DaemonSet") (ne (dig "type" "" .) "OnDelete") -}}
{{- /* The API server's defaults for a key that is missing. */}}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 . -}}
{{- $unavailable := dig "rollingUpdate" "maxUnavailable" 1 . -}}
{{- if eq (has (toString $surge) (list "0" "0%")) (has (toString $unavailable) (list "0" "0%")) -}}
{{- fail (printf "daemonSet.updateStrategy: exactly one of maxSurge and maxUnavailable must be 0, and they are %v and %v. Set both: if one is missing, Kubernetes takes maxSurge 0 or maxUnavailable 1" $surge $unavailable) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.daemonSet.hostPort .Values.daemonSet.hostNetwork -}}
{{- fail "daemonSet: on the host's network the proxy has the node's ports anyway. Set either hostPort or hostNetwork, and the port with ports.https" -}}
{{- end -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls: the certificate is either in existingSecret or from certManager" -}}
{{- end -}}
{{- if and .Values.service.loadBalancerSourceRanges (ne .Values.service.type "LoadBalancer") -}}
{{- fail "service.loadBalancerSourceRanges: only a Service of type LoadBalancer has these. Limit others by networkPolicy" -}}
{{- end -}}
{{- if and .Values.servers .Values.upstream.host -}}
{{- fail "upstream: either servers or upstream.host. The first are API servers, the second is another release of the chart" -}}
{{- end -}}
{{- if eq .Values.kind "DaemonSet" -}}
{{- if .Values.stateFromReplicas -}}
{{- fail "stateFromReplicas: the proxies of a DaemonSet do not take states from each other. Set kind to Deployment" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling: a DaemonSet has one proxy on each node. Set kind to Deployment" -}}
{{- end -}}
{{- end -}}
{{- $values := dict "--listen" "listenAddress and ports.https" "--admin-listen" "admin.address and ports.admin" "--tls-cert" "tls" "--tls-key" "tls" "--admin-tls-cert" "admin.tls" "--admin-tls-key" "admin.tls" "--admin-token-file" "admin.tokenSecret" "--config" "config" "--client-ca-file" "clientCA" "--validate-service-account-tokens-locally" "validateServiceAccountTokensLocally" "--refuse-invalid-service-account-tokens" "refuseInvalidServiceAccountTokens" "--state-from" "stateFromReplicas" "--window-seconds" "window.seconds" "--window-mib" "window.mib" "--drain-seconds" "drainSeconds" "--log-format" "log.format" "--log-level" "log.level" "--goaway-chance" "goawayChance" "--max-connection-age" "maxConnectionAge" -}}
{{- $own := list -}}
{{- range include "watershed.args" . | fromJsonArray -}}
{{- $own = append $own (splitn "=" 2 .)._0 -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- $flag := (splitn "=" 2 .)._0 -}}
{{- if and (has $flag $own) (hasKey $values $flag) -}}
{{- fail (printf "extraArgs: the chart sets %s already, and the proxy refuses to start with two. Use the value %s" $flag (get $values $flag)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.upstream.caConfigMap (not .Values.upstream.host) -}}
{{- fail "upstream.caConfigMap: it is the CA of upstream.host, which is not set" -}}
{{- end -}}
{{- if and .Values.service.externalTrafficPolicy (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.externalTrafficPolicy: only a Service of type NodePort or LoadBalancer has it" -}}
{{- end -}}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.nodePort: only a Service of type NodePort or LoadBalancer has one" -}}
{{- end -}}
{{- if and .Values.service.loadBalancerClass (ne .Values.service.type "LoadBalancer") -}}
{{- fail "service.loadBalancerClass: only a Service of type LoadBalancer has one" -}}
{{- end -}}
{{- if and .Values.caBundle.namespaces (not .Values.caBundle.publish) -}}
{{- fail "caBundle.namespaces: no ConfigMap is published there. Set caBundle.publish" -}}
{{- end -}}
{{- if and (eq .Values.service.trafficDistribution "PreferSameNode") (semverCompare "<1.34-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "service.trafficDistribution: Kubernetes %s does not know PreferSameNode, 1.34 is the first that does" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- with .Values.tls.certManager -}}
{{- /* Durations in hours alone are compared. */ -}}
{{- $inHours := and (regexMatch "^[0-9]+h$" .duration) (regexMatch "^[0-9]+h$" .renewBefore) -}}
{{- if and .enabled $inHours (ge (.renewBefore | trimSuffix "h" | int64) (.duration | trimSuffix "h" | int64)) -}}
{{- fail (printf "tls.certManager: renewBefore (%s) must be less than duration (%s)" .renewBefore .duration) -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- $resources := $.Values.resources | default dict -}}
{{- $request := dig "requests" "cpu" "" $resources | default (dig "limits" "cpu" "" $resources) -}}
{{- if and .enabled .targetCPUUtilizationPercentage (not $request) -}}
{{- fail "autoscaling.targetCPUUtilizationPercentage: it is a share of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling: minReplicas (%d) is more than maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The bytes of a quantity such as 512Mi. 0 if it has another form. */}}
{{- define "watershed.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (kindIs "string" .) -}}
{{- . | default 0 | int64 -}}
{{- else if regexMatch "^[0-9]+([.][0-9]+)?([kMGT]|[KMGT]i)?$" . -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- define "watershed.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "watershed.fullname" .)) -}}
{{- end -}}

{{/* Source of the certificate: secret, cert-manager or chart. */}}
{{- define "watershed.tlsBy" -}}
{{- if .Values.tls.existingSecret -}}secret{{- else if .Values.tls.certManager.enabled -}}cert-manager{{- else -}}chart{{- end -}}
{{- end -}}

{{/* DNS names in the certificate, as a JSON list. */}}
{{- define "watershed.dnsNames" -}}
{{- $service := include "watershed.fullname" . -}}
{{- $space := .Release.Namespace -}}
{{- $names := list $service (printf "%s.%s" $service $space) (printf "%s.%s.svc" $service $space) (printf "%s.%s.svc.cluster.local" $service $space) "localhost" -}}
{{- concat $names .Values.tls.extraNames | uniq | toJson -}}
{{- end -}}

{{/* Host name for clients. */}}
{{- define "watershed.host" -}}
{{- printf "%s.%s.svc" (include "watershed.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Core types that the proxy may cache by default: all but secrets, as RBAC cannot exclude one resource from "*". */}}
{{- define "watershed.coreTypes" -}}
configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims persistentvolumes pods podtemplates replicationcontrollers resourcequotas serviceaccounts services
{{- end -}}

{{/* Built-in groups of other types. */}}
{{- define "watershed.builtInGroups" -}}
admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io apps autoscaling batch certificates.k8s.io coordination.k8s.io discovery.k8s.io events.k8s.io flowcontrol.apiserver.k8s.io networking.k8s.io node.k8s.io policy rbac.authorization.k8s.io resource.k8s.io scheduling.k8s.io storage.k8s.io storagemigration.k8s.io
{{- end -}}

{{/* Types that the configuration adds, as GROUP/RESOURCE. */}}
{{- define "watershed.namedTypes" -}}
{{- $config := .Values.config | default dict -}}
{{- $named := list -}}
{{- range $config.resources -}}
{{- if and (hasKey . "cache") (not (has (toString .cache) (list "false" "never"))) -}}
{{- $named = append $named (printf "%s/%s" (default "" .group) .resource) -}}
{{- end -}}
{{- end -}}
{{- range $config.scopes -}}
{{- $named = append $named (printf "%s/%s" (default "" .group) .resource) -}}
{{- end -}}
{{- /* Events of both groups are the same objects, and one entry is about both. */ -}}
{{- if or (has "/events" $named) (has "events.k8s.io/events" $named) -}}
{{- $named = concat $named (list "/events" "events.k8s.io/events") -}}
{{- end -}}
{{- $named | uniq | join " " -}}
{{- end -}}

{{/* Types that are cached without being named: all, node or none. */}}
{{- define "watershed.cachedByDefault" -}}
{{- $config := .Values.config | default dict -}}
{{- $cache := ternary (toString $config.cache) "" (hasKey $config "cache") -}}
{{- if and (eq .Values.kind "DaemonSet") .Values.daemonSet.nodePreset (has $cache (list "" "false" "never")) -}}node
{{- else if has $cache (list "false" "never") -}}none
{{- else -}}all
{{- end -}}
{{- end -}}

{{/* GROUP/RESOURCE of an entry of the configuration. Events of both groups are the same objects. */}}
{{- define "watershed.typeName" -}}
{{- $name := printf "%s/%s" (default "" .group) .resource -}}
{{- ternary "/events" $name (eq $name "events.k8s.io/events") -}}
{{- end -}}

{{/* Types that are cached in some namespaces only, and these namespaces: a JSON object by GROUP/RESOURCE. */}}
{{- define "watershed.partlyCached" -}}
{{- $config := .Values.config | default dict -}}
{{- $namespaces := dict -}}
{{- range $config.scopes -}}
{{- $type := include "watershed.typeName" . -}}
{{- /* Without namespaces a scope is about all, which is "" here. */ -}}
{{- $_ := set $namespaces $type (concat (default list (get $namespaces $type)) (.namespaces | default (list ""))) -}}
{{- end -}}
{{- $leases := "coordination.k8s.io/leases" -}}
{{- if and (eq (include "watershed.cachedByDefault" .) "node") (not (hasKey $namespaces $leases)) -}}
{{- $_ := set $namespaces $leases (list "kube-node-lease") -}}
{{- end -}}
{{- $onDemand := dict -}}
{{- range $config.resources -}}
{{- if hasKey . "selectorScopes" -}}
{{- $_ := set $onDemand (include "watershed.typeName" .) .selectorScopes -}}
{{- end -}}
{{- end -}}
{{- $parts := dict -}}
{{- range $type, $list := $namespaces -}}
{{- /* Clients open scopes of any namespace. */ -}}
{{- $everywhere := ternary (get $onDemand $type) $config.selectorScopes (hasKey $onDemand $type) -}}
{{- if not (or $everywhere (has "" $list)) -}}
{{- $_ := set $parts $type (uniq $list) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $parts "/events" -}}
{{- $_ := set $parts "events.k8s.io/events" (get $parts "/events") -}}
{{- end -}}
{{- toJson $parts -}}
{{- end -}}

{{/* Not empty if one of a list of rules grants a type. */}}
{{- define "watershed.isGranted" -}}
{{- $type := splitn "/" 2 (index . 1) -}}
{{- range index . 0 -}}
{{- if and (or (has $type._0 .apiGroups) (has "*" .apiGroups)) (or (has $type._1 .resources) (has "*" .resources)) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rules for the types that the proxy caches and follows: a JSON object with those of its ClusterRole ("cluster"), and of
     its Roles by namespace ("namespaces"). */}}
{{- define "watershed.rights" -}}
{{- $core := splitList " " (include "watershed.coreTypes" .) -}}
{{- $groups := splitList " " (include "watershed.builtInGroups" .) -}}
{{- $parts := include "watershed.partlyCached" . | fromJson -}}
{{- $added := compact (splitList " " (include "watershed.namedTypes" .)) -}}
{{- $rules := list -}}
{{- if .Values.rbac.cached -}}
{{- range .Values.rbac.cached -}}
{{- $rules = append $rules (dict "apiGroups" .apiGroups "resources" .resources) -}}
{{- end -}}
{{- else if eq (include "watershed.cachedByDefault" .) "all" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" $core) -}}
{{- $rules = append $rules (dict "apiGroups" $groups "resources" (list "*")) -}}
{{- else -}}
{{- if eq (include "watershed.cachedByDefault" .) "node" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (ternary (list "nodes") (list "nodes" "pods") (hasKey $parts "/pods"))) -}}
{{- $added = append $added "coordination.k8s.io/leases" -}}
{{- end -}}
{{- /* What the proxy reads for itself: changes of rights, and custom and aggregated types if it may cache any. */ -}}
{{- $others := .Values.rbac.customGroups -}}
{{- range $added -}}
{{- $group := (splitn "/" 2 .)._0 -}}
{{- if not (or (eq $group "") (has $group $groups)) -}}
{{- $others = append $others $group -}}
{{- end -}}
{{- end -}}
{{- if $others -}}
{{- $rules = append $rules (dict "apiGroups" (list "apiextensions.k8s.io") "resources" (list "customresourcedefinitions")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "apiregistration.k8s.io") "resources" (list "apiservices")) -}}
{{- end -}}
{{- $rules = append $rules (dict "apiGroups" (list "rbac.authorization.k8s.io") "resources" (list "clusterrolebindings" "clusterroles" "rolebindings" "roles")) -}}
{{- end -}}
{{- with .Values.rbac.customGroups -}}
{{- $rules = append $rules (dict "apiGroups" . "resources" (list "*")) -}}
{{- end -}}
{{- $everywhere := list -}}
{{- range $added -}}
{{- if not (hasKey $parts .) -}}{{- $everywhere = append $everywhere . -}}{{- end -}}
{{- end -}}
{{- if .Values.validateServiceAccountTokensLocally -}}
{{- /* Every token is bound to a service account, whose metadata are followed. */ -}}
{{- $everywhere = append $everywhere "/serviceaccounts" -}}
{{- end -}}
{{- range uniq $everywhere -}}
{{- if not (include "watershed.isGranted" (list $rules .)) -}}
{{- $type := splitn "/" 2 . -}}
{{- $rules = append $rules (dict "apiGroups" (list $type._0) "resources" (list $type._1)) -}}
{{- end -}}
{{- end -}}
{{- $roles := dict -}}
{{- range $added | uniq -}}
{{- if and (hasKey $parts .) (not (include "watershed.isGranted" (list $rules .))) -}}
{{- $type := splitn "/" 2 . -}}
{{- range get $parts . -}}
{{- $_ := set $roles . (append (default list (get $roles .)) (dict "apiGroups" (list $type._0) "resources" (list $type._1))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "cluster" $rules "namespaces" $roles | toJson -}}
{{- end -}}

{{/* A list of rules in YAML. */}}
{{- define "watershed.rules" -}}
{{- range . }}
- apiGroups: {{ toJson .apiGroups }}
  resources: {{ toJson .resources }}
  verbs: ["list", "watch"]
{{- end }}
{{- end -}}

{{/* Replicas take their first states from each other. */}}
{{- define "watershed.stateFromReplicas" -}}
{{- if and .Values.stateFromReplicas (eq .Values.kind "Deployment") -}}true{{- end -}}
{{- end -}}

{{/* The Service by which replicas reach each other. */}}
{{- define "watershed.replicasName" -}}
{{- printf "%s-replicas" (include "watershed.fullname" .) -}}
{{- end -}}

{{/* Files of the proxy besides its certificate. */}}
{{- define "watershed.hasFiles" -}}
{{- if or .Values.config .Values.clientCA (include "watershed.stateFromReplicas" .) -}}true{{- end -}}
{{- end -}}

{{/* A probe of the admin listener, without its timing. */}}
{{- define "watershed.probe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
  port: admin
  {{- if $root.Values.admin.tls }}
  scheme: HTTPS
  {{- end }}
  {{- $address := include "watershed.adminAddress" $root }}
  {{- if and (include "watershed.hostNetwork" $root) (ne $address "0.0.0.0") (ne $address "[::]") }}
  host: {{ $address | trimPrefix "[" | trimSuffix "]" | quote }}
  {{- end }}
{{- end -}}

{{/* Endpoint settings of a ServiceMonitor or PodMonitor for the admin listener. */}}
{{- define "watershed.scrape" -}}
{{- if .Values.admin.tls -}}
scheme: https
tlsConfig:
  serverName: {{ include "watershed.host" . }}
  ca:
    {{- if and (ne (include "watershed.tlsBy" .) "secret") (or (not .Values.caBundle.publish) (not .Values.caBundle.pem)) }}
    # The chart and cert-manager put the CA beside the certificate. The ConfigMap is only made once it is there.
    secret:
      name: "{{ include "watershed.tlsSecret" . }}"
      key: ca.crt
    {{- else if .Values.caBundle.publish }}
    configMap:
      name: "{{ include "watershed.fullname" . }}-ca"
      key: ca.crt
    {{- else }}
    {{- fail "monitoring: with admin.tls Prometheus needs the CA of tls.existingSecret. Set caBundle.publish, and caBundle.pem unless the Secret has a ca.crt" }}
    {{- end }}
{{- else -}}
scheme: http
{{- end }}
{{- with .Values.admin.tokenSecret }}
{{- if .name }}
authorization:
  credentials:
    name: "{{ .name }}"
    key: {{ .key | quote }}
{{- end }}
{{- end }}
{{- end -}}
