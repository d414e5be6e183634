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
  "models" (include "radixgate.models" . | fromYamlArray)
  "workers" (include "radixgate.workers" . | fromYamlArray)
  "discovery" (include "radixgate.discovery" . | fromYamlArray)
  "plans" $tenants.plans
  "tenants" $tenants.tenants
  "drain" (dict "notice_seconds" 5 "seconds" 120)
-}}
{{- with include "radixgate.memory" . | fromYaml -}}
{{- $_ := set $derived "index" (dict "memory_bytes_max" (int64 .index)) -}}
{{- $_ := set $derived.listen "memory_bytes_max" (int64 .requests) -}}
{{- end -}}
{{- if .Values.metricsToken.existingSecret -}}
{{- $_ := set $derived.admin "metrics_token" "${env:RADIXGATE_METRICS_TOKEN}" -}}
{{- end -}}
{{- range $name, $listener := dict "tenants" "listen" "admin" "admin" -}}
{{- if (index $.Values.gateway.tls $name).existingSecret -}}
{{- $files := printf "/etc/radixgate-tls/%s/tls" $name -}}
{{- $_ := set (get $derived $listener) "tls" (dict "certificate" (printf "%s.crt" $files) "key" (printf "%s.key" $files)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.gateway.endpointPicker -}}
{{- if .enabled -}}
{{- $picker := dict "host" "0.0.0.0" "port" .port -}}
{{- if .tls.existingSecret -}}
{{- $_ := set $picker "tls" (dict "certificate" "/etc/radixgate-tls/picker/tls.crt" "key" "/etc/radixgate-tls/picker/tls.key") -}}
{{- end -}}
{{- $_ := set $derived.listen "endpoint_picker" $picker -}}
{{- end -}}
{{- end -}}
{{- /* While the init container waits in vain for the database, the gateway upgrades the tables later. */ -}}
{{- $upgrade := ternary "always" "never" (eq .Values.database.upgrade "init") -}}
{{- $_ := set $derived "database" (dict "url" (include "radixgate.databaseUrl" .) "upgrade" $upgrade) -}}
{{- with .Values.tenantObjects -}}
{{- if .enabled -}}
{{- $_ := set $derived "tenant_objects" (dict "keys" .keys "namespace" (default $.Release.Namespace .namespace)) -}}
{{- end -}}
{{- end -}}
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

{{/*
All workers. Each embedded one has its own name: a common Service would hide which one has a prefix cached. Envoy knows
pods by their addresses: for it they are discovered.
*/}}
{{- define "radixgate.workers" -}}
{{- $name := printf "%s-worker" (include "radixgate.fullname" .) -}}
{{- $workers := list -}}
{{- $named := ternary 0 (int .Values.workers.embedded.replicas) .Values.gateway.endpointPicker.enabled -}}
{{- range $at := until $named -}}
{{- $url := printf "http://%s-%d.%s.%s.svc:30000" $name $at $name $.Release.Namespace -}}
{{- $workers = append $workers (dict "id" (printf "worker-%d" $at) "kind" "embedded" "url" $url "api_key" "${env:RADIXGATE_OWN_WORKERS_KEY}") -}}
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

{{/* Where gateways look for workers: the values' sources, and the Service of each pool of engines. */}}
{{- define "radixgate.discovery" -}}
{{- $sources := list -}}
{{- range $at, $given := .Values.workers.discovery -}}
{{- $source := omit $given "apiKey" -}}
{{- if dig "apiKey" "existingSecret" "" $given -}}
{{- $_ := set $source "api_key" (printf "${env:RADIXGATE_DISCOVERY_KEY_%d}" $at) -}}
{{- end -}}
{{- $sources = append $sources $source -}}
{{- end -}}
{{- if and .Values.gateway.endpointPicker.enabled (int .Values.workers.embedded.replicas) -}}
{{- $name := printf "%s-worker" (include "radixgate.fullname" .) -}}
{{- $sources = append $sources (dict "kind" "kubernetes" "name" $name "port_name" "http" "worker_kind" "embedded" "api_key" "${env:RADIXGATE_OWN_WORKERS_KEY}") -}}
{{- end -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $source := dict "kind" "kubernetes" "name" (printf "%s-http" .fullname) "port_name" "http" "worker_kind" .engine "role" .role "priority" "on" "api_key" "${env:RADIXGATE_OWN_WORKERS_KEY}" -}}
{{- $sources = append $sources $source -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end -}}

{{/*
The values' models, and those of pools that may have no engine at times: the gateway has these models also then, and
their requests wait for the first engine. An adapter among them that the values do not name has the tokenizer, the
prices and the further settings of its pool's model.
*/}}
{{- define "radixgate.models" -}}
{{- $seconds := dict -}}
{{- $parents := dict -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- if and .autoscaling.enabled (not (int .autoscaling.minReplicas)) -}}
{{- $wait := .autoscaling.firstWorkerSeconds -}}
{{- $_ := set $seconds .model.name $wait -}}
{{- $parent := .model.name -}}
{{- range .lora -}}
{{- $_ := set $seconds .name $wait -}}
{{- $_ := set $parents .name $parent -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $wait := get $seconds .name -}}
{{- $models = append $models (merge (deepCopy .) (ternary (dict "first_worker_seconds_max" $wait) dict (hasKey $seconds .name))) -}}
{{- $_ := unset $seconds .name -}}
{{- end -}}
{{- range $name, $wait := $seconds -}}
{{- $model := dict "name" $name "first_worker_seconds_max" $wait -}}
{{- range $.Values.models -}}
{{- if eq .name (get $parents $name) -}}
{{- $model = merge $model (omit (deepCopy .) "aliases" "tenant_aliases" "splits" "fallbacks") -}}
{{- end -}}
{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- toYaml $models -}}
{{- end -}}

{{/* "yes" if gateways call the API of the cluster, else empty. */}}
{{- define "radixgate.asksCluster" -}}
{{- if include "radixgate.roles" . | fromYaml -}}yes{{- end -}}
{{- end -}}

{{/* By namespace, the rules of the Role that gateways need there, as YAML. */}}
{{- define "radixgate.roles" -}}
{{- $wanted := dict -}}
{{- range include "radixgate.discovery" . | fromYamlArray -}}
{{- if eq .kind "kubernetes" -}}
{{- $namespace := default $.Release.Namespace .namespace -}}
{{- $kinds := get $wanted $namespace | default list -}}
{{- if .inference_pool -}}
{{- $kinds = concat $kinds (list "pods" "inferencepools") -}}
{{- else -}}
{{- $kinds = append $kinds (ternary "pods" "endpointslices" (not (empty .selector))) -}}
{{- end -}}
{{- $_ := set $wanted $namespace $kinds -}}
{{- end -}}
{{- end -}}
{{- with .Values.tenantObjects -}}
{{- if .enabled -}}
{{- $namespace := default $.Release.Namespace .namespace -}}
{{- $kinds := concat (get $wanted $namespace | default list) (list "configmaps" "events") (ternary (list "secrets") list .keys) -}}
{{- $_ := set $wanted $namespace $kinds -}}
{{- end -}}
{{- end -}}
{{- $groups := dict "configmaps" "" "secrets" "" "events" "" "pods" "" "endpointslices" "discovery.k8s.io" "inferencepools" "inference.networking.k8s.io" -}}
{{- $roles := dict -}}
{{- range $namespace, $kinds := $wanted -}}
{{- $rules := list -}}
{{- range uniq $kinds | sortAlpha -}}
{{- $rules = append $rules (dict "apiGroups" (list (get $groups .)) "resources" (list .) "verbs" (ternary (list "create") (list "get" "list" "watch") (eq . "events"))) -}}
{{- end -}}
{{- $_ := set $roles $namespace $rules -}}
{{- end -}}
{{- toYaml $roles -}}
{{- end -}}

{{/* "yes" if there is a demo tenant, else empty. */}}
{{- define "radixgate.demo" -}}
{{- if and .Values.demoTenant.enabled (not .Values.tenants) (not .Values.tenantsFrom.existingSecret) (not .Values.tenantObjects.enabled) -}}yes{{- end -}}
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
