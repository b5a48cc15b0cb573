{{/* Start of the names of all objects. */}}
{{- define "disagg.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Recommended labels of a component: include "disagg.labels" (dict "root" $ "component" "operator"). */}}
{{- define "disagg.labels" -}}
{{ include "disagg.selector" . }}
app.kubernetes.io/part-of: disagg
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* The part of them that never changes, for selectors. */}}
{{- define "disagg.selector" -}}
app.kubernetes.io/name: disagg
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Reference of an image: include "disagg.imageOf" (dict "image" .Values.x.image "default" "tag"). */}}
{{- define "disagg.imageOf" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .default) -}}
{{- end -}}
{{- end -}}

{{- define "disagg.image" -}}
{{- include "disagg.imageOf" (dict "image" .Values.image "default" .Chart.AppVersion) -}}
{{- end -}}

{{/* Prometheus that planners ask: the bundled one, or the one that was named, or none. */}}
{{- define "disagg.prometheusUrl" -}}
{{- if .Values.prometheus.enabled -}}
{{- printf "http://%s-prometheus.%s.svc:9090" (include "disagg.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- .Values.prometheus.url -}}
{{- end -}}
{{- end -}}

{{/* Pod-level fields that all our pods share: restricted Pod Security, pull secrets. */}}
{{- define "disagg.podSecurity" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "disagg.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a component's pods may run: include "disagg.scheduling" .Values.operator. */}}
{{- define "disagg.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Combinations that cannot work, refused before anything is installed. */}}
{{- define "disagg.validate" -}}
{{- if and .Values.fakeGpus.enabled (ne .Values.scope "cluster") -}}
{{- fail "fakeGpus.enabled needs scope: cluster, because nodes belong to no namespace" -}}
{{- end -}}
{{- if and .Values.monitoring.enabled (not (include "disagg.prometheusUrl" .)) -}}
{{- fail "monitoring.enabled needs a data source: set prometheus.enabled to true, or prometheus.url" -}}
{{- end -}}
{{- end -}}

{{/* Labels that a PodMonitor gives to samples besides namespace and pod: those of disagg_contract.metrics. */}}
{{- define "disagg.podMonitorRelabelings" -}}
- sourceLabels: [__meta_kubernetes_pod_label_disagg_dev_deployment]
  targetLabel: disagg_deployment
- sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_component]
  targetLabel: disagg_role
{{- end -}}
