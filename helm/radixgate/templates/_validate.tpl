{{/* Refuses values that cannot work, with a message. Mistakes in the settings are left to the gateway's own checks. */}}
{{- define "radixgate.validate" -}}
{{- $values := .Values -}}
{{- $gateway := $values.gateway -}}
{{- $redis := $values.redis -}}
{{- $many := include "radixgate.many" . -}}
{{- $database := include "radixgate.databaseMode" . -}}

{{- $name := include "radixgate.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "radixgate: the Services would be named %s, and a name has lower case letters, digits and hyphens, and begins with a letter; set fullnameOverride." $name) -}}
{{- end -}}
{{- if and $many (eq $redis.mode "embedded") -}}
{{- fail "radixgate: redis.mode embedded keeps quotas inside one gateway, so it requires gateway.replicas 1 and no autoscaling; use bundled or external." -}}
{{- end -}}
{{- if and $many (not $values.deploymentSecret.existingSecret) -}}
{{- fail "radixgate: more than one gateway needs your own deployment secret, permanently the same for all: create a Secret and name it in deploymentSecret.existingSecret." -}}
{{- end -}}
{{- include "radixgate.validateDatabase" . -}}
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

{{- if not (or (int $values.workers.embedded.replicas) $values.workers.external $values.workers.pools $values.workers.discovery) -}}
{{- fail "radixgate: there are no workers: set workers.embedded.replicas or workers.pools, or name some in workers.external or workers.discovery." -}}
{{- end -}}
{{- include "radixgate.validatePools" . -}}
{{- include "radixgate.validatePicker" . -}}
{{- include "radixgate.validateEdges" . -}}
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
{{- $stored := or (ne $database "sqlite") (eq $values.database.upgrade "init") -}}
{{- if not (or $values.tenantObjects.enabled $values.tenants $values.tenantsFrom.existingSecret $values.demoTenant.enabled $stored) -}}
{{- fail "radixgate: there are no tenants, and a gateway outside loopback needs one or a database with some: set tenants, tenantsFrom.existingSecret or demoTenant.enabled." -}}
{{- end -}}

{{- range $path, $instead := dict "workers" "workers" "discovery" "workers.discovery" "models" "models" "plans" "plans" "tenants" "tenants" "deployment_secret" "deploymentSecret" "tenant_objects" "tenantObjects" "state_directory" "gateway.persistence" -}}
{{- if hasKey $values.config $path -}}
{{- fail (printf "radixgate: the chart writes config.%s itself; set %s." $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if dig "redis" "url" "" $values.config -}}
{{- fail "radixgate: the chart writes config.redis.url itself; set redis.mode and redis.external." -}}
{{- end -}}
{{- if dig "database" "url" "" $values.config -}}
{{- fail "radixgate: config.database.url would appear in a ConfigMap; set database.mode, or put the whole URL into a Secret and name it in database.existingSecret." -}}
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
{{- if dig "admin" "token" "" $values.config -}}
{{- fail "radixgate: config.admin.token would appear in a ConfigMap; set adminToken." -}}
{{- end -}}
{{- include "radixgate.validateMemory" . -}}

{{- $images := list $gateway.image $values.workers.embedded.image $redis.bundled.image -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $images = append $images .image -}}
{{- end -}}
{{- range $images -}}
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
{{- if and (int $percent) (not (dig "requests" $name "" (default dict $gateway.resources))) -}}
{{- fail (printf "radixgate: gateway.autoscaling.%sPercent is a share of gateway.resources.requests.%s, which is not set." $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $kind, $wanted := dict "ServiceMonitor" $values.metrics.serviceMonitor.enabled "PrometheusRule" $values.metrics.prometheusRule.enabled -}}
{{- if and $wanted (not ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail (printf "radixgate: this cluster has no %s; install the Prometheus operator first (or tell helm template --api-versions monitoring.coreos.com/v1)." $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses values with which tenants, keys or usage would be lost. */}}
{{- define "radixgate.validateDatabase" -}}
{{- $many := include "radixgate.many" . -}}
{{- $mode := include "radixgate.databaseMode" . -}}
{{- $database := .Values.database -}}
{{- $persistence := .Values.gateway.persistence -}}
{{- $name := include "radixgate.fullname" . -}}
{{- if and (eq $mode "external") (not $database.existingSecret) -}}
{{- fail "radixgate: database.mode external needs database.existingSecret, a Secret with the whole URL." -}}
{{- end -}}
{{- if and (ne $mode "external") $database.existingSecret -}}
{{- fail (printf "radixgate: database.existingSecret names a PostgreSQL, but database.mode is %s." $mode) -}}
{{- end -}}
{{- if and $many (eq $mode "sqlite") -}}
{{- fail "radixgate: more than one gateway needs PostgreSQL: with SQLite each would have tenants, keys and usage of its own. Set database.mode to bundled, or name yours in database.existingSecret." -}}
{{- end -}}
{{- if and (eq $mode "sqlite") (not $persistence.enabled) -}}
{{- fail "radixgate: without gateway.persistence, SQLite is lost with the pod, and with it tenants, keys, usage and the audit log: enable it, or set database.mode to bundled or external." -}}
{{- end -}}
{{- if and $many $persistence.existingClaim -}}
{{- fail "radixgate: gateway.persistence.existingClaim is one claim, and each of several gateways needs its own: leave it empty." -}}
{{- end -}}
{{- if and (eq .Values.redis.mode "embedded") (not $persistence.enabled) -}}
{{- fail "radixgate: redis.mode embedded keeps its file on the gateway's claim: enable gateway.persistence." -}}
{{- end -}}
{{- if and (eq $database.upgrade "job") (ne $mode "external") -}}
{{- fail "radixgate: database.upgrade job runs before the release's own objects exist, so it needs database.mode external; use init." -}}
{{- end -}}
{{- $before := (lookup "v1" "ConfigMap" .Release.Namespace $name).metadata | default dict -}}
{{- $had := dig "labels" "radixgate/database" "" $before -}}
{{- if and $had (ne $had $mode) (eq $database.mode "auto") -}}
{{- fail (printf "radixgate: this release keeps tenants, keys and usage in a database of mode %s, and these values would begin with an empty one of mode %s. Move them with `radixgate database backup` and `restore` (see OPERATIONS.md), then set database.mode to %s." $had $mode $mode) -}}
{{- end -}}
{{- with (lookup "apps/v1" "StatefulSet" .Release.Namespace $name).spec -}}
{{- range .volumeClaimTemplates -}}
{{- $size := dig "spec" "resources" "requests" "storage" "" . -}}
{{- if and $size (ne $size $persistence.size) -}}
{{- fail (printf "radixgate: the claims of a StatefulSet cannot be changed: they have %s, not %s. Resize the claims state-%s-N, run `kubectl delete statefulset %s --cascade=orphan`, and upgrade again." $size $persistence.size $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses pools of engines that cannot run, and sources of workers that cannot be asked. */}}
{{- define "radixgate.validatePools" -}}
{{- $names := list -}}
{{- $roles := dict -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $at := printf "the pool %s" .name -}}
{{- if has .name $names -}}
{{- fail (printf "radixgate: two pools have the name %s." .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $model := .model -}}
{{- if not $model.name -}}
{{- fail (printf "radixgate: %s has no model.name, the name of its model in requests." $at) -}}
{{- end -}}
{{- if and (eq $model.source "hub") (not $model.path) -}}
{{- fail (printf "radixgate: %s loads its model from a hub, so it needs model.path, as in org/name." $at) -}}
{{- end -}}
{{- if and (eq $model.source "claim") (not $model.existingClaim) -}}
{{- fail (printf "radixgate: %s has model.source claim, so it needs model.existingClaim." $at) -}}
{{- end -}}
{{- if and (eq $model.source "hostPath") (not $model.hostPath) -}}
{{- fail (printf "radixgate: %s has model.source hostPath, so it needs model.hostPath." $at) -}}
{{- end -}}
{{- if eq $model.source "image" -}}
{{- if not $model.image -}}
{{- fail (printf "radixgate: %s has model.source image, so it needs model.image." $at) -}}
{{- end -}}
{{- if semverCompare "<1.33.0-0" $.Capabilities.KubeVersion.Version -}}
{{- fail (printf "radixgate: %s mounts an image as a volume, which needs Kubernetes 1.33; this is %s." $at $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- if mod (mul .tensorParallel .dataParallel) .nodes -}}
{{- fail (printf "radixgate: %s has %d GPUs (tensorParallel times dataParallel), which %d nodes cannot share evenly." $at (mul .tensorParallel .dataParallel) (int .nodes)) -}}
{{- end -}}
{{- if gt (int .nodes) 1 -}}
{{- if not ($.Capabilities.APIVersions.Has "leaderworkerset.x-k8s.io/v1") -}}
{{- fail (printf "radixgate: %s is spread over %d nodes, and this cluster has no LeaderWorkerSet; install it first (or tell helm template --api-versions leaderworkerset.x-k8s.io/v1)." $at (int .nodes)) -}}
{{- end -}}
{{- if and .cache.size (not .cache.existingClaim) -}}
{{- fail (printf "radixgate: %s is spread over several nodes, whose cache cannot be a claim of the chart's: name one that all can mount in cache.existingClaim." $at) -}}
{{- end -}}
{{- end -}}
{{- $served := list $model.name -}}
{{- range .lora -}}
{{- if has .name $served -}}
{{- fail (printf "radixgate: %s would serve two models by the name %s; give each adapter in lora a name of its own." $at .name) -}}
{{- end -}}
{{- $served = append $served .name -}}
{{- end -}}
{{- range .extraArgs -}}
{{- if hasPrefix "--api-key" . -}}
{{- fail (printf "radixgate: %s names a key in extraArgs, which would appear in the pod; put it into a Secret and name it in workers.apiKey." $at) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $roles $model.name (append (get $roles $model.name | default list) .role) -}}
{{- with .autoscaling -}}
{{- if .enabled -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "radixgate: %s: autoscaling.minReplicas is larger than maxReplicas." $at) -}}
{{- end -}}
{{- if eq .kind "hpa" -}}
{{- range $served -}}
{{- if or (gt (len .) 63) (not (regexMatch "^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$" .)) -}}
{{- fail (printf "radixgate: %s: a HorizontalPodAutoscaler cannot select the model %s, since that is no value of a label; give it a name of letters, digits, '-', '_' and '.', or set autoscaling.kind to keda." $at .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .kind "keda" -}}
{{- if not .prometheus.address -}}
{{- fail (printf "radixgate: %s: autoscaling with KEDA needs autoscaling.prometheus.address." $at) -}}
{{- end -}}
{{- if not ($.Capabilities.APIVersions.Has "keda.sh/v1alpha1") -}}
{{- fail (printf "radixgate: %s: this cluster has no ScaledObject; install KEDA first (or tell helm template --api-versions keda.sh/v1alpha1), or set autoscaling.kind to hpa." $at) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* The other half may be a worker that runs already. */ -}}
{{- range $model, $each := ternary dict $roles (gt (len (concat .Values.workers.external .Values.workers.discovery)) 0) -}}
{{- range $one, $other := dict "prefill" "decode" "decode" "prefill" -}}
{{- if and (has $one $each) (not (has $other $each)) -}}
{{- fail (printf "radixgate: the model %s has a pool with role %s and none with role %s; both halves of a pair are needed." $model $one $other) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (include "radixgate.asksCluster" .) (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "radixgate: gateways watch the cluster for workers or tenants, which the default service account may not; set serviceAccount.create, or name an account." -}}
{{- end -}}
{{- end -}}

{{/* Refuses an endpoint picker that could not be asked, or by strangers. */}}
{{- define "radixgate.validatePicker" -}}
{{- with .Values.gateway.endpointPicker -}}
{{- if and .inferencePool.enabled (not .enabled) -}}
{{- fail "radixgate: gateway.endpointPicker.inferencePool names the gateway as its endpoint picker: set gateway.endpointPicker.enabled." -}}
{{- end -}}
{{- if and .inferencePool.enabled (not ($.Capabilities.APIVersions.Has "inference.networking.k8s.io/v1")) -}}
{{- fail "radixgate: this cluster has no InferencePool; install the Gateway API Inference Extension first (or tell helm template --api-versions inference.networking.k8s.io/v1)." -}}
{{- end -}}
{{- if and .enabled $.Values.networkPolicy.enabled (not $.Values.networkPolicy.envoyFrom) -}}
{{- fail "radixgate: the endpoint picker sends its callers the workers' keys: name Envoy's pods in networkPolicy.envoyFrom." -}}
{{- end -}}
{{- if dig "listen" "endpoint_picker" dict $.Values.config -}}
{{- fail "radixgate: the chart writes config.listen.endpoint_picker itself; set gateway.endpointPicker." -}}
{{- end -}}
{{- end -}}
{{- end -}}
