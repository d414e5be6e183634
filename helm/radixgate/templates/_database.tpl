{{/* "yes" if there may be more than one gateway, else empty. */}}
{{- define "radixgate.many" -}}
{{- if or .Values.gateway.autoscaling.enabled (gt (int .Values.gateway.replicas) 1) -}}yes{{- end -}}
{{- end -}}

{{/* The kind of database: sqlite, bundled or external. */}}
{{- define "radixgate.databaseMode" -}}
{{- $database := .Values.database -}}
{{- if ne $database.mode "auto" -}}
{{- $database.mode -}}
{{- else if $database.existingSecret -}}
external
{{- else if include "radixgate.many" . -}}
bundled
{{- else -}}
sqlite
{{- end -}}
{{- end -}}

{{/* The URL of the database as the settings have it; passwords are references. */}}
{{- define "radixgate.databaseUrl" -}}
{{- $mode := include "radixgate.databaseMode" . -}}
{{- if eq $mode "external" -}}
${env:RADIXGATE_DATABASE_URL}
{{- else if eq $mode "bundled" -}}
postgresql://radixgate:${env:RADIXGATE_DATABASE_PASSWORD}@{{ include "radixgate.fullname" . }}-postgres:5432/radixgate
{{- else -}}
sqlite:///radixgate.db
{{- end -}}
{{- end -}}

{{/* The environment variables to which that URL refers. */}}
{{- define "radixgate.databaseEnv" -}}
{{- $mode := include "radixgate.databaseMode" . -}}
{{- if eq $mode "external" -}}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_DATABASE_URL" .Values.database "url") }}
{{- else if eq $mode "bundled" -}}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_DATABASE_PASSWORD" .Values.database.bundled.password "database-password") }}
{{- end -}}
{{- end -}}

{{/*
Upgrades the tables before the gateway starts; a lock lets one pod at a time. If the database is away, the gateway
starts all the same, with the tenants that it knows, and upgrades the tables once the database answers.
*/}}
{{- define "radixgate.upgradeContainer" -}}
- name: upgrade-tables
  image: {{ include "radixgate.image" (list . .Values.gateway.image) }}
  imagePullPolicy: {{ .Values.gateway.image.pullPolicy }}
  args: [database, upgrade, --if-reachable, --wait, "30", --config, /etc/radixgate/gateway.yaml]
  env:
    {{- include "radixgate.gatewayEnv" . | trim | nindent 4 }}
    {{- with .Values.gateway.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.gateway.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    requests: {cpu: 50m, memory: 128Mi}
    limits: {memory: 512Mi}
  securityContext:
    {{- toYaml .Values.gateway.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "radixgate.gatewayMounts" . | trim | nindent 4 }}
{{- end -}}
