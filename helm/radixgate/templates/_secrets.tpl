{{/* "yes" if the chart runs workers itself, pools or embedded ones, else empty. */}}
{{- define "radixgate.ownWorkers" -}}
{{- if or .Values.workers.pools (int .Values.workers.embedded.replicas) -}}yes{{- end -}}
{{- end -}}

{{- define "radixgate.generatedName" -}}
{{ include "radixgate.fullname" . }}-generated
{{- end -}}

{{/*
The secrets that the chart generates, as YAML of base64 texts: values in the cluster are kept, missing ones are new.
Without a cluster (helm template) nothing is found, and every rendering has new values. They are generated once per rendering and kept in .Values, since the Secret and the checksums need the same values.
*/}}
{{- define "radixgate.generated" -}}
{{- if not (hasKey .Values "drawn") -}}
{{- $wanted := dict -}}
{{- if not .Values.deploymentSecret.existingSecret -}}
{{- $_ := set $wanted "deployment-secret" (randAlphaNum 64) -}}
{{- end -}}
{{- if not .Values.adminToken.existingSecret -}}
{{- $_ := set $wanted "admin-token" (randAlphaNum 43) -}}
{{- end -}}
{{- if and (eq .Values.redis.mode "bundled") (not .Values.redis.bundled.password.existingSecret) -}}
{{- $_ := set $wanted "redis-password" (randAlphaNum 43) -}}
{{- end -}}
{{- if and (eq (include "radixgate.databaseMode" .) "bundled") (not .Values.database.bundled.password.existingSecret) -}}
{{- $_ := set $wanted "database-password" (randAlphaNum 43) -}}
{{- end -}}
{{- if and (include "radixgate.ownWorkers" .) (not .Values.workers.apiKey.existingSecret) -}}
{{- $_ := set $wanted "worker-key" (randAlphaNum 43) -}}
{{- end -}}
{{- if include "radixgate.demo" . -}}
{{- $_ := set $wanted "demo-key" (printf "%s-%s" (randAlphaNum 8) (randAlphaNum 43)) -}}
{{- end -}}
{{- $kept := (lookup "v1" "Secret" .Release.Namespace (include "radixgate.generatedName" .)).data | default dict -}}
{{- $drawn := dict -}}
{{- range $key, $text := $wanted -}}
{{- $_ := set $drawn $key (get $kept $key | default (b64enc $text)) -}}
{{- end -}}
{{- $_ := set .Values "drawn" $drawn -}}
{{- end -}}
{{- toYaml .Values.drawn -}}
{{- end -}}

{{/* An environment variable from a Secret. Takes (list $ "NAME" {existingSecret, key} "key in the generated Secret"). */}}
{{- define "radixgate.secretEnv" -}}
{{- $root := index . 0 -}}
{{- $from := index . 2 -}}
{{- $generated := index . 3 -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
{{- if $from.existingSecret }}
      name: {{ $from.existingSecret }}
      key: {{ default $generated $from.key }}
{{- else }}
      name: {{ include "radixgate.generatedName" $root }}
      key: {{ $generated }}
{{- end }}
{{- end -}}

{{/* The names of the operator's Secrets that gateways read into their environment, as a YAML list. */}}
{{- define "radixgate.ownSecrets" -}}
{{- $values := .Values -}}
{{- $names := list $values.deploymentSecret.existingSecret $values.adminToken.existingSecret $values.metricsToken.existingSecret $values.tenantsFrom.existingSecret $values.database.existingSecret -}}
{{- if eq $values.redis.mode "external" -}}
{{- $names = append $names $values.redis.external.existingSecret -}}
{{- else if eq $values.redis.mode "bundled" -}}
{{- $names = append $names $values.redis.bundled.password.existingSecret -}}
{{- end -}}
{{- if eq (include "radixgate.databaseMode" .) "bundled" -}}
{{- $names = append $names $values.database.bundled.password.existingSecret -}}
{{- end -}}
{{- range $values.workers.external -}}
{{- $names = append $names (dig "apiKey" "existingSecret" "" .) -}}
{{- end -}}
{{- range $values.workers.discovery -}}
{{- $names = append $names (dig "apiKey" "existingSecret" "" .) -}}
{{- end -}}
{{- if include "radixgate.ownWorkers" . -}}
{{- $names = append $names $values.workers.apiKey.existingSecret -}}
{{- end -}}
{{- range $values.operatorIssuers -}}
{{- $names = append $names (dig "login" "clientSecret" "existingSecret" "" .) -}}
{{- end -}}
{{- range $values.webhooks -}}
{{- $names = append $names .secret.existingSecret -}}
{{- end -}}
{{- toYaml (compact $names | uniq) -}}
{{- end -}}

{{/* The names of Secrets that pods need and that the cluster does not have, as a YAML list; empty without a cluster. */}}
{{- define "radixgate.missingSecrets" -}}
{{- $missing := list -}}
{{- /* Every namespace has this ConfigMap. */ -}}
{{- if lookup "v1" "ConfigMap" .Release.Namespace "kube-root-ca.crt" -}}
{{- $names := include "radixgate.ownSecrets" . | fromYamlArray -}}
{{- range include "radixgate.listenerTls" . | fromYaml -}}
{{- $names = append $names .existingSecret -}}
{{- end -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $names = append $names .model.token.existingSecret -}}
{{- end -}}
{{- $names = append $names .Values.test.apiKey.existingSecret -}}
{{- range compact $names | uniq | sortAlpha -}}
{{- if not (lookup "v1" "Secret" $.Release.Namespace .) -}}
{{- $missing = append $missing . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $missing -}}
{{- end -}}

{{/* A checksum of all Secrets that a gateway reads and helm may read: pods restart when it changes. */}}
{{- define "radixgate.secretsChecksum" -}}
{{- $all := list (include "radixgate.generated" .) -}}
{{- range include "radixgate.ownSecrets" . | fromYamlArray -}}
{{- $all = append $all (toJson (lookup "v1" "Secret" $.Release.Namespace .).data) -}}
{{- end -}}
{{- join "\n" $all | sha256sum -}}
{{- end -}}

{{/* The environment variables to which the gateway's settings refer. */}}
{{- define "radixgate.gatewayEnv" -}}
{{- $values := .Values -}}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_DEPLOYMENT_SECRET" $values.deploymentSecret "deployment-secret") }}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_ADMIN_TOKEN" $values.adminToken "admin-token") }}
{{- if $values.metricsToken.existingSecret }}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_METRICS_TOKEN" $values.metricsToken "metrics-token") }}
{{- end }}
{{- if eq $values.redis.mode "bundled" }}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_REDIS_PASSWORD" $values.redis.bundled.password "redis-password") }}
{{- else if and (eq $values.redis.mode "external") $values.redis.external.existingSecret }}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_REDIS_URL" $values.redis.external "url") }}
{{- end }}
{{- with include "radixgate.databaseEnv" . }}
{{ . }}
{{- end }}
{{- with $values.tenantsFrom }}
{{- if .existingSecret }}
{{ include "radixgate.secretEnv" (list $ "RADIXGATE__TENANTS" (dict "existingSecret" .existingSecret "key" .tenantsKey) "tenants") }}
{{- if .plansKey }}
{{ include "radixgate.secretEnv" (list $ "RADIXGATE__PLANS" (dict "existingSecret" .existingSecret "key" .plansKey) "plans") }}
{{- end }}
{{- end }}
{{- end }}
{{- range $at, $external := $values.workers.external }}
{{- if dig "apiKey" "existingSecret" "" $external }}
{{ include "radixgate.secretEnv" (list $ (printf "RADIXGATE_WORKER_KEY_%d" $at) $external.apiKey "api-key") }}
{{- end }}
{{- end }}
{{- range $at, $source := $values.workers.discovery }}
{{- if dig "apiKey" "existingSecret" "" $source }}
{{ include "radixgate.secretEnv" (list $ (printf "RADIXGATE_DISCOVERY_KEY_%d" $at) $source.apiKey "api-key") }}
{{- end }}
{{- end }}
{{- if include "radixgate.ownWorkers" . }}
{{ include "radixgate.secretEnv" (list . "RADIXGATE_OWN_WORKERS_KEY" $values.workers.apiKey "worker-key") }}
{{- end }}
{{- range $at, $issuer := $values.operatorIssuers }}
{{- if dig "login" "clientSecret" "existingSecret" "" $issuer }}
{{ include "radixgate.secretEnv" (list $ (printf "RADIXGATE_LOGIN_SECRET_%d" $at) $issuer.login.clientSecret "client-secret") }}
{{- end }}
{{- end }}
{{- range $at, $hook := $values.webhooks }}
{{ include "radixgate.secretEnv" (list $ (printf "RADIXGATE_WEBHOOK_SECRET_%d" $at) $hook.secret "webhook-secret") }}
{{- end }}
{{- end -}}

{{/*
The demo tenant's key, completed from the random text in the Secret and written to /run/radixgate: by the gateway's pod
for its settings, by the test's pod to use it. The same text gives the same key, so the pods need not exchange it.
*/}}
{{- define "radixgate.demoKeyContainer" -}}
- name: demo-key
  image: {{ include "radixgate.image" (list . .Values.gateway.image) }}
  imagePullPolicy: {{ .Values.gateway.image.pullPolicy }}
  command: [python, -c]
  args:
    - |
      {{- .Files.Get "files/demo_key.py" | nindent 6 }}
    - /run/radixgate
  env:
    {{- include "radixgate.secretEnv" (list . "RADIXGATE_DEPLOYMENT_SECRET" .Values.deploymentSecret "deployment-secret") | nindent 4 }}
    {{- include "radixgate.secretEnv" (list . "DEMO_KEY" dict "demo-key") | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- toYaml .Values.gateway.securityContext | nindent 4 }}
  volumeMounts:
    - {name: run, mountPath: /run/radixgate}
{{- end -}}

{{/*
A checksum of one secret: what reads no other restarts for no other. Takes (list $ {existingSecret} "key in the
generated Secret").
*/}}
{{- define "radixgate.secretChecksum" -}}
{{- $root := index . 0 -}}
{{- $name := (index . 1).existingSecret -}}
{{- if $name -}}
{{- toJson (lookup "v1" "Secret" $root.Release.Namespace $name).data | sha256sum -}}
{{- else -}}
{{- get (include "radixgate.generated" $root | fromYaml) (index . 2) | sha256sum -}}
{{- end -}}
{{- end -}}
