{{- define "watershed.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of what belongs to no namespace: two releases of one name may be in two namespaces. */}}
{{- define "watershed.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "watershed.fullname" .) -}}
{{- end -}}

{{- define "watershed.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "watershed.labels" -}}
{{ include "watershed.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "watershed.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "watershed.fullname" .)) -}}
{{- end -}}
