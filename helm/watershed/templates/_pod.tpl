{{/* The pod of the Deployment or DaemonSet. */}}
{{- define "watershed.pod" -}}
{{- include "watershed.checkValues" . -}}
{{- $hostNetwork := include "watershed.hostNetwork" . -}}
{{- $daemonSet := eq .Values.kind "DaemonSet" -}}
metadata:
  labels:
    {{- include "watershed.labelsWith" (list . .Values.podLabels) | nindent 4 }}
  {{- if or .Values.podAnnotations (include "watershed.hasFiles" .) }}
  annotations:
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if include "watershed.hasFiles" . }}
    # The proxy reads its configuration at the start only, so a change replaces the pods.
    checksum/files: {{ print (toJson .Values.config) .Values.clientCA (and (include "watershed.stateFromReplicas" .) (printf "%d%s" (int .Values.service.port) (default "" .Values.caBundle.pem))) | sha256sum }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: "{{ include "watershed.serviceAccount" . }}"
  {{- if .Values.upstream.host }}
  # The usual volume holds the API server's CA; the one below takes its place.
  automountServiceAccountToken: false
  {{- else }}
  # The ServiceAccount may say otherwise.
  automountServiceAccountToken: true
  {{- end }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: "{{ . }}"
  {{- end }}
  {{- if $hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  # preStop, --drain-seconds and a margin.
  terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.drainSeconds 25 }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
  {{- else if not $daemonSet }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "watershed.selector" $ | nindent 10 }}
      # Replicas of one revision are spread. Those of the revision before do not count, as they are about to end.
      matchLabelKeys: ["pod-template-hash"]
    {{- end }}
  {{- end }}
  {{- with .Values.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: watershed
      image: {{ include "watershed.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        {{- range include "watershed.args" . | fromJsonArray }}
        - {{ . | quote }}
        {{- end }}
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      {{- $onNode := and $daemonSet .Values.daemonSet.nodePreset }}
      {{- if or $onNode .Values.upstream.host .Values.extraEnv }}
      env:
        {{- if $onNode }}
        # Default of --node-name: the proxy caches the objects of its node only.
        - name: NODE_NAME
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        {{- end }}
        {{- if .Values.upstream.host }}
        - {name: KUBERNETES_SERVICE_HOST, value: {{ .Values.upstream.host | quote }}}
        - {name: KUBERNETES_SERVICE_PORT, value: {{ int .Values.upstream.port | quote }}}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        - name: https
          containerPort: {{ include "watershed.httpsPort" . }}
          {{- if and $daemonSet .Values.daemonSet.hostPort (not $hostNetwork) }}
          hostPort: {{ int .Values.daemonSet.hostPort }}
          hostIP: {{ .Values.daemonSet.hostIP | quote }}
          {{- end }}
        - name: admin
          containerPort: {{ include "watershed.adminPort" . }}
      {{- $probes := .Values.probes | default dict }}
      startupProbe:
        {{- include "watershed.probe" (list . "/livez") | nindent 8 }}
        {{- with $probes.startup }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      livenessProbe:
        {{- include "watershed.probe" (list . "/livez") | nindent 8 }}
        {{- with $probes.liveness }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      readinessProbe:
        {{- include "watershed.probe" (list . "/readyz") | nindent 8 }}
        {{- with $probes.readiness }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.preStopSeconds }}
      lifecycle:
        preStop:
          # The pod accepts connections until the Service has removed its endpoint.
          sleep:
            seconds: {{ . }}
      {{- end }}
      {{- with .Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: tls
          mountPath: /etc/watershed/tls
          readOnly: true
        {{- if include "watershed.hasFiles" . }}
        - name: files
          mountPath: /etc/watershed/files
          readOnly: true
        {{- end }}
        {{- if .Values.admin.tokenSecret.name }}
        - name: admin
          mountPath: /etc/watershed/admin
          readOnly: true
        {{- end }}
        {{- if .Values.upstream.host }}
        - name: access
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tls
      secret:
        secretName: "{{ include "watershed.tlsSecret" . }}"
        defaultMode: 0440
    {{- if include "watershed.hasFiles" . }}
    - name: files
      configMap:
        name: "{{ include "watershed.fullname" . }}"
    {{- end }}
    {{- if .Values.admin.tokenSecret.name }}
    - name: admin
      secret:
        secretName: "{{ .Values.admin.tokenSecret.name }}"
        defaultMode: 0440
    {{- end }}
    {{- if .Values.upstream.host }}
    - name: access
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken: {path: token}
          - configMap:
              name: "{{ required "upstream.caConfigMap: the ConfigMap with the CA of upstream.host" .Values.upstream.caConfigMap }}"
              items: [{key: ca.crt, path: ca.crt}]
          - downwardAPI:
              items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "watershed.nodes" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The nodes on which pods may run. */}}
{{- define "watershed.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.tolerations }}
tolerations:
  {{- toYaml .Values.tolerations | nindent 2 }}
{{- else if eq .Values.kind "DaemonSet" }}
tolerations:
  - operator: Exists
{{- end }}
{{- end -}}
