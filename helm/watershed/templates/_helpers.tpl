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
app.kubernetes.io/name: {{ include "watershed.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "watershed.labels" -}}
{{ include "watershed.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
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
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "watershed.hostNetwork" -}}
{{- if and (eq .Values.kind "DaemonSet") .Values.daemonSet.hostNetwork -}}true{{- end -}}
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

{{/* Files of the proxy besides its certificate. */}}
{{- define "watershed.hasFiles" -}}
{{- if or .Values.config .Values.clientCA -}}true{{- end -}}
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
  {{- if .Values.caBundle.publish }}
  ca:
    configMap:
      name: {{ include "watershed.fullname" . }}-ca
      key: ca.crt
  {{- end }}
{{- else -}}
scheme: http
{{- end }}
{{- with .Values.admin.tokenSecret }}
{{- if .name }}
authorization:
  credentials:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}
{{- end }}
{{- end -}}
