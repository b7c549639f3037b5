{{/* The name that the objects of this release begin with. */}}
{{- define "gpu-dra-driver.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gpu-dra-driver.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The service account of the node plugin; the admission policies are for it. */}}
{{- define "gpu-dra-driver.pluginServiceAccount" -}}
{{ include "gpu-dra-driver.fullname" . }}-kubelet-plugin
{{- end -}}

{{- define "gpu-dra-driver.controllerServiceAccount" -}}
{{ include "gpu-dra-driver.fullname" . }}-controller
{{- end -}}

{{/* Labels by which the Services of the controller find its pods. */}}
{{- define "gpu-dra-driver.controllerSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "gpu-dra-driver.pluginSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end -}}

{{- define "gpu-dra-driver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
