{{/* Refuses values that cannot work, with a message. Mistakes in the settings are left to the gateway's own checks. */}}
{{- define "radixgate.validate" -}}
{{- $values := .Values -}}
{{- $gateway := $values.gateway -}}
{{- $redis := $values.redis -}}
{{- $many := or $gateway.autoscaling.enabled (gt (int $gateway.replicas) 1) -}}

{{- if and $many (eq $redis.mode "embedded") -}}
{{- fail "radixgate: redis.mode embedded keeps quotas inside one gateway, so it requires gateway.replicas 1 and no autoscaling; use bundled or external." -}}
{{- end -}}
{{- if and $many (not $values.deploymentSecret.existingSecret) -}}
{{- fail "radixgate: more than one gateway needs your own deployment secret, permanently the same for all: create a Secret and name it in deploymentSecret.existingSecret." -}}
{{- end -}}
{{- if eq $redis.mode "external" -}}
{{- if not (or $redis.external.url $redis.external.existingSecret) -}}
{{- fail "radixgate: redis.mode external needs redis.external.url, or redis.external.existingSecret with the URL." -}}
{{- end -}}
{{- if and $redis.external.url $redis.external.existingSecret -}}
{{- fail "radixgate: choose one of redis.external.url and redis.external.existingSecret." -}}
{{- end -}}
{{- if and (contains "@" $redis.external.url) (not (contains "${" $redis.external.url)) -}}
{{- fail "radixgate: redis.external.url carries credentials and would appear in a ConfigMap; put the whole URL into a Secret and name it in redis.external.existingSecret." -}}
{{- end -}}
{{- end -}}

{{- if not (or (int $values.workers.embedded.replicas) $values.workers.external) -}}
{{- fail "radixgate: there are no workers: set workers.embedded.replicas, or name some in workers.external." -}}
{{- end -}}
{{- $ids := list -}}
{{- range include "radixgate.workers" . | fromYamlArray -}}
{{- if has .id $ids -}}
{{- fail (printf "radixgate: two workers have the id %s; embedded ones use worker-0, worker-1 and so on." .id) -}}
{{- end -}}
{{- $ids = append $ids .id -}}
{{- end -}}
{{- $model := $values.workers.embedded.model -}}
{{- if and (eq $model.source "claim") (not $model.existingClaim) -}}
{{- fail "radixgate: workers.embedded.model.source claim needs workers.embedded.model.existingClaim." -}}
{{- end -}}
{{- if and (eq $model.source "hostPath") (not $model.hostPath) -}}
{{- fail "radixgate: workers.embedded.model.source hostPath needs workers.embedded.model.hostPath." -}}
{{- end -}}

{{- if and $values.tenants $values.tenantsFrom.existingSecret -}}
{{- fail "radixgate: choose one of tenants and tenantsFrom.existingSecret; the Secret would replace the list." -}}
{{- end -}}
{{- if not (or $values.tenants $values.tenantsFrom.existingSecret $values.demoTenant.enabled) -}}
{{- fail "radixgate: there are no tenants, and a gateway outside loopback needs one: set tenants, tenantsFrom.existingSecret or demoTenant.enabled." -}}
{{- end -}}

{{- range $path, $instead := dict "workers" "workers" "models" "models" "plans" "plans" "tenants" "tenants" "deployment_secret" "deploymentSecret" "state_directory" "redis.embedded.persistence" -}}
{{- if hasKey $values.config $path -}}
{{- fail (printf "radixgate: the chart writes config.%s itself; set %s." $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if dig "redis" "url" "" $values.config -}}
{{- fail "radixgate: the chart writes config.redis.url itself; set redis.mode and redis.external." -}}
{{- end -}}
{{- if dig "database" "url" "" $values.config -}}
{{- fail "radixgate: config.database.url would appear in a ConfigMap; put the whole URL into a Secret and name it in database.existingSecret." -}}
{{- end -}}
{{- if dig "authentication" "tokens" "" $values.config -}}
{{- fail "radixgate: the chart writes config.authentication.tokens itself; set tokenIssuers." -}}
{{- end -}}
{{- range $path, $instead := dict "webhooks" "webhooks" "usage" "usage" -}}
{{- if hasKey $values.config $path -}}
{{- fail (printf "radixgate: the chart writes config.%s itself; set %s." $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if dig "admin" "issuers" "" $values.config -}}
{{- fail "radixgate: the chart writes config.admin.issuers itself; set operatorIssuers." -}}
{{- end -}}
{{- if and $values.webhooks $many (not $values.database.existingSecret) -}}
{{- fail "radixgate: webhooks receive hourly totals of every tenant; with more than one gateway these are in PostgreSQL only: set database.existingSecret." -}}
{{- end -}}
{{- if dig "admin" "token" "" $values.config -}}
{{- fail "radixgate: config.admin.token would appear in a ConfigMap; set adminToken." -}}
{{- end -}}
{{- with dig "limits" "memory" "" $gateway.resources -}}
{{- $limit := include "radixgate.bytes" . | int64 -}}
{{- $index := dig "index" "memory_bytes_max" 0 $values.config | int64 -}}
{{- if ge $index $limit -}}
{{- fail (printf "radixgate: config.index.memory_bytes_max is %d, but the whole gateway may use %s (gateway.resources.limits.memory)." $index .) -}}
{{- end -}}
{{- end -}}

{{- range list $gateway.image $values.workers.embedded.image $redis.bundled.image -}}
{{- if and (eq .tag "latest") (not .digest) -}}
{{- fail (printf "radixgate: the image %s needs a tag that names a version, or a digest; latest may differ in every pod." .repository) -}}
{{- end -}}
{{- end -}}

{{- with $gateway.autoscaling -}}
{{- if .enabled -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "radixgate: gateway.autoscaling.minReplicas is larger than maxReplicas." -}}
{{- end -}}
{{- if not (or (int .cpuPercent) (int .memoryPercent) .metrics) -}}
{{- fail "radixgate: gateway.autoscaling has no metric to scale by: set cpuPercent, memoryPercent or metrics." -}}
{{- end -}}
{{- range $name, $percent := dict "cpu" .cpuPercent "memory" .memoryPercent -}}
{{- if and (int $percent) (not (dig "requests" $name "" $gateway.resources)) -}}
{{- fail (printf "radixgate: gateway.autoscaling.%sPercent is a share of gateway.resources.requests.%s, which is not set." $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $gateway.ingress.enabled (not $gateway.ingress.hosts) -}}
{{- fail "radixgate: gateway.ingress.enabled needs gateway.ingress.hosts." -}}
{{- end -}}

{{- with $values.networkPolicy -}}
{{- $away := or $values.workers.external (eq $redis.mode "external") $values.database.existingSecret $values.tokenIssuers $values.operatorIssuers $values.webhooks -}}
{{- if and .enabled .egress.enabled $away (not .egress.extra) -}}
{{- fail "radixgate: networkPolicy.egress would cut the gateway off from its external workers, Redis, database, issuers or webhooks; name them in networkPolicy.egress.extra." -}}
{{- end -}}
{{- end -}}
{{- range $kind, $wanted := dict "ServiceMonitor" $values.metrics.serviceMonitor.enabled "PrometheusRule" $values.metrics.prometheusRule.enabled -}}
{{- if and $wanted (not ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail (printf "radixgate: this cluster has no %s; install the Prometheus operator first (or tell helm template --api-versions monitoring.coreos.com/v1)." $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
