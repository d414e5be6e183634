{{/*
The gateway's settings: those that the chart derives, overridden by .Values.config. Secrets are references only. To the
gateway, all clients behind an ingress share one address: the bound of connections is its share of file descriptors.
*/}}
{{- define "radixgate.config" -}}
{{- $tenants := include "radixgate.tenants" . | fromYaml -}}
{{- $derived := dict
  "listen" (dict "host" "0.0.0.0" "port" 8000 "connections_per_address_max" 50000)
  "admin" (dict "host" "0.0.0.0" "port" 8001 "token" "${env:RADIXGATE_ADMIN_TOKEN}")
  "redis" (dict "url" (include "radixgate.redisUrl" .))
  "state_directory" "/var/lib/radixgate"
  "deployment_secret" "${env:RADIXGATE_DEPLOYMENT_SECRET}"
  "models" .Values.models
  "workers" (include "radixgate.workers" . | fromYamlArray)
  "plans" $tenants.plans
  "tenants" $tenants.tenants
  "drain" (dict "notice_seconds" 5 "seconds" 120)
-}}
{{- with dig "limits" "memory" "" .Values.gateway.resources -}}
{{- /* The index takes half as much again for the caches that it follows; the rest is for processes and streams. */ -}}
{{- $quarter := div (include "radixgate.bytes" . | int64) 4 -}}
{{- $_ := set $derived "index" (dict "memory_bytes_max" $quarter) -}}
{{- $_ := set $derived.listen "memory_bytes_max" $quarter -}}
{{- end -}}
{{- range $name, $listener := dict "tenants" "listen" "admin" "admin" -}}
{{- if (index $.Values.gateway.tls $name).existingSecret -}}
{{- $files := printf "/etc/radixgate-tls/%s/tls" $name -}}
{{- $_ := set (get $derived $listener) "tls" (dict "certificate" (printf "%s.crt" $files) "key" (printf "%s.key" $files)) -}}
{{- end -}}
{{- end -}}
{{- /* While the init container waits in vain for the database, the gateway upgrades the tables later. */ -}}
{{- $upgrade := ternary "always" "never" (eq .Values.database.upgrade "init") -}}
{{- $_ := set $derived "database" (dict "url" (include "radixgate.databaseUrl" .) "upgrade" $upgrade) -}}
{{- with .Values.tokenIssuers -}}
{{- $_ := set $derived "authentication" (dict "tokens" .) -}}
{{- end -}}
{{- with include "radixgate.operatorIssuers" . | fromYamlArray -}}
{{- $_ := set $derived.admin "issuers" . -}}
{{- end -}}
{{- with include "radixgate.webhooks" . | fromYamlArray -}}
{{- $_ := set $derived "webhooks" . -}}
{{- end -}}
{{- with .Values.usage -}}
{{- $_ := set $derived "usage" . -}}
{{- end -}}
{{- toYaml (mergeOverwrite $derived (deepCopy .Values.config)) -}}
{{- end -}}

{{- define "radixgate.operatorIssuers" -}}
{{- $issuers := list -}}
{{- range $at, $given := .Values.operatorIssuers -}}
{{- $issuer := omit $given "login" -}}
{{- with $given.login -}}
{{- $login := omit . "clientSecret" -}}
{{- if dig "clientSecret" "existingSecret" "" . -}}
{{- $_ := set $login "client_secret" (printf "${env:RADIXGATE_LOGIN_SECRET_%d}" $at) -}}
{{- end -}}
{{- $_ := set $issuer "login" $login -}}
{{- end -}}
{{- $issuers = append $issuers $issuer -}}
{{- end -}}
{{- toYaml $issuers -}}
{{- end -}}

{{- define "radixgate.webhooks" -}}
{{- $hooks := list -}}
{{- range $at, $given := .Values.webhooks -}}
{{- $hook := omit $given "secret" -}}
{{- $_ := set $hook "secret" (printf "${env:RADIXGATE_WEBHOOK_SECRET_%d}" $at) -}}
{{- $hooks = append $hooks $hook -}}
{{- end -}}
{{- toYaml $hooks -}}
{{- end -}}

{{- define "radixgate.redisUrl" -}}
{{- $redis := .Values.redis -}}
{{- if eq $redis.mode "embedded" -}}
embedded
{{- else if eq $redis.mode "bundled" -}}
redis://:${env:RADIXGATE_REDIS_PASSWORD}@{{ include "radixgate.fullname" . }}-valkey:6379/0
{{- else if $redis.external.existingSecret -}}
${env:RADIXGATE_REDIS_URL}
{{- else -}}
{{- $redis.external.url -}}
{{- end -}}
{{- end -}}

{{/* All workers. Each embedded one has its own name: a common Service would hide which one has a prefix cached. */}}
{{- define "radixgate.workers" -}}
{{- $name := printf "%s-worker" (include "radixgate.fullname" .) -}}
{{- $workers := list -}}
{{- range $at := until (int .Values.workers.embedded.replicas) -}}
{{- $url := printf "http://%s-%d.%s.%s.svc:30000" $name $at $name $.Release.Namespace -}}
{{- $workers = append $workers (dict "id" (printf "worker-%d" $at) "kind" "embedded" "url" $url) -}}
{{- end -}}
{{- range $at, $external := .Values.workers.external -}}
{{- $worker := omit $external "apiKey" -}}
{{- if dig "apiKey" "existingSecret" "" $external -}}
{{- $_ := set $worker "api_key" (printf "${env:RADIXGATE_WORKER_KEY_%d}" $at) -}}
{{- end -}}
{{- $workers = append $workers $worker -}}
{{- end -}}
{{- toYaml $workers -}}
{{- end -}}

{{/* "yes" if there is a demo tenant, else empty. */}}
{{- define "radixgate.demo" -}}
{{- if and .Values.demoTenant.enabled (not .Values.tenants) (not .Values.tenantsFrom.existingSecret) -}}yes{{- end -}}
{{- end -}}

{{/* Plans and tenants; lists from a Secret arrive in environment variables and replace those in the file. */}}
{{- define "radixgate.tenants" -}}
{{- $plans := .Values.plans -}}
{{- $tenants := .Values.tenants -}}
{{- if include "radixgate.demo" . -}}
{{- $demo := .Values.demoTenant -}}
{{- $plans = append $plans (dict "name" "demo-tenant" "limits" $demo.limits "concurrency" $demo.concurrency) -}}
{{- $key := dict "id" "${file:/run/radixgate/id}" "hash" "${file:/run/radixgate/hash}" -}}
{{- $tenants = list (dict "id" "demo" "plan" "demo-tenant" "keys" (list $key)) -}}
{{- end -}}
{{- toYaml (dict "plans" $plans "tenants" $tenants) -}}
{{- end -}}
