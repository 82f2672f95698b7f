{{- define "secret" -}}{{ .Values.secret.existing | default .Release.Name }}{{- end -}}
{{- define "selector" -}}
app.kubernetes.io/name: workflow-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
