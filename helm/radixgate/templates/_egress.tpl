{{/* The ports of the chart's own pods that gateways connect to, by component, as YAML of NetworkPolicy ports. */}}
{{- define "radixgate.innerPorts" -}}
{{- $found := dict -}}
{{- if eq .Values.redis.mode "bundled" -}}
{{- $_ := set $found "valkey" (list (dict "port" 6379 "protocol" "TCP")) -}}
{{- end -}}
{{- if eq (include "radixgate.databaseMode" .) "bundled" -}}
{{- $_ := set $found "postgres" (list (dict "port" 5432 "protocol" "TCP")) -}}
{{- end -}}
{{- if int .Values.workers.embedded.replicas -}}
{{- /* The two ports after that of HTTP have KV events and their replay. */ -}}
{{- $_ := set $found "worker" (list (dict "port" 30000 "endPort" 30002 "protocol" "TCP")) -}}
{{- end -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $last := include "radixgate.poolLastPort" . | int -}}
{{- $_ := set $found .component (list (dict "port" 30000 "endPort" $last "protocol" "TCP")) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/*
The ports of the operator's Redis as a YAML list. Sentinels name a server whose port stands nowhere in the values, and
so does an address in a Secret.
*/}}
{{- define "radixgate.redisPorts" -}}
{{- $url := .Values.redis.external.url -}}
{{- $other := .Values.networkPolicy.egress.ports.redis -}}
{{- $found := list -}}
{{- if and $url (not (contains "${" $url)) -}}
{{- range regexFind "//[^/]+" $url | trimPrefix "//" | splitList "," -}}
{{- $found = append $found (regexFind ":[0-9]+$" . | trimPrefix ":" | default "6379" | int) -}}
{{- end -}}
{{- end -}}
{{- if or (empty $found) (contains "+sentinel:" $url) -}}
{{- $found = append $found $other -}}
{{- end -}}
{{- toYaml (uniq $found) -}}
{{- end -}}

{{/* The port of a URL, else that of its scheme. */}}
{{- define "radixgate.urlPort" -}}
{{- $parts := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" -}}
{{- default (ternary "80" "443" (eq $parts.scheme "http")) $port -}}
{{- end -}}

{{/*
What a gateway calls outside of the chart: by name of networkPolicy.egress.to, the ports as YAML. Ports of addresses in
Secrets are those of networkPolicy.egress.ports.
*/}}
{{- define "radixgate.egressPorts" -}}
{{- $values := .Values -}}
{{- $ports := $values.networkPolicy.egress.ports -}}
{{- $config := include "radixgate.config" . | fromYaml -}}
{{- $found := dict -}}
{{- if eq $values.redis.mode "external" -}}
{{- $_ := set $found "redis" (include "radixgate.redisPorts" . | fromYamlArray) -}}
{{- end -}}
{{- if eq (include "radixgate.databaseMode" .) "external" -}}
{{- $_ := set $found "database" (list $ports.database) -}}
{{- end -}}
{{- with $ports.workers -}}
{{- $_ := set $found "workers" . -}}
{{- end -}}
{{- $urls := dict "workers" list "issuers" list "webhooks" list "otlp" list "s3" list "media" list -}}
{{- range $values.workers.external -}}
{{- $_ := set $urls "workers" (append $urls.workers .url) -}}
{{- range list .kv_events .load_feed -}}
{{- if kindIs "map" . -}}
{{- range compact (list .endpoint .replay_endpoint) -}}
{{- $_ := set $urls "workers" (append $urls.workers .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $values.workers.discovery -}}
{{- with .port -}}
{{- $_ := set $urls "workers" (append $urls.workers (printf "http://discovered:%d" (int .))) -}}
{{- end -}}
{{- end -}}
{{- if include "radixgate.asksCluster" . -}}
{{- $_ := set $found "kubernetes" $ports.kubernetes -}}
{{- end -}}
{{- range concat $values.tokenIssuers $values.operatorIssuers -}}
{{- $_ := set $urls "issuers" (concat $urls.issuers (compact (list .issuer .jwks_url))) -}}
{{- end -}}
{{- range $values.webhooks -}}
{{- $_ := set $urls "webhooks" (append $urls.webhooks .url) -}}
{{- end -}}
{{- with dig "telemetry" "otlp_endpoint" "" $config -}}
{{- $_ := set $urls "otlp" (list .) -}}
{{- end -}}
{{- with dig "files" "s3" dict $config -}}
{{- /* Without a key of their own, credentials come from Amazon's token service, or from the node. */ -}}
{{- $_ := set $urls "s3" (compact (list (default "https://s3.amazonaws.com" .endpoint) (ternary "" "https://sts.amazonaws.com" (hasKey . "access_key_id")))) -}}
{{- end -}}
{{- range dig "requests" "media_hosts" list $config -}}
{{- if regexMatch ":[0-9]+$" . -}}
{{- $_ := set $urls "media" (append $urls.media (printf "http://%s" .)) -}}
{{- else -}}
{{- $_ := set $urls "media" (concat $urls.media (list (printf "http://%s" .) (printf "https://%s" .))) -}}
{{- end -}}
{{- end -}}
{{- range $name, $each := $urls -}}
{{- range $each -}}
{{- $port := include "radixgate.urlPort" . | int -}}
{{- $_ := set $found $name (append (get $found $name | default list) $port) -}}
{{- end -}}
{{- end -}}
{{- range $name, $each := $found -}}
{{- $_ := set $found $name (uniq $each) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
