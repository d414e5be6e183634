{{/* Refuses listeners that nothing could reach, and ways to them that do not exist. */}}
{{- define "radixgate.validateEdges" -}}
{{- $values := .Values -}}
{{- $gateway := $values.gateway -}}
{{- $config := include "radixgate.config" . | fromYaml -}}
{{- if and $gateway.ingress.enabled (not $gateway.ingress.hosts) -}}
{{- fail "radixgate: gateway.ingress.enabled needs gateway.ingress.hosts." -}}
{{- end -}}
{{- if and $gateway.service.sourceRanges (ne $gateway.service.type "LoadBalancer") -}}
{{- fail (printf "radixgate: gateway.service.sourceRanges is read by load balancers only, and gateway.service.type is %s; restrict clients by networkPolicy.tenantsFrom." $gateway.service.type) -}}
{{- end -}}
{{- if and $gateway.httpRoute.enabled (not $gateway.httpRoute.parentRefs) -}}
{{- fail "radixgate: gateway.httpRoute.enabled needs gateway.httpRoute.parentRefs, the Gateways that it belongs to." -}}
{{- end -}}
{{- if and $gateway.httpRoute.enabled (not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1")) -}}
{{- fail "radixgate: this cluster has no HTTPRoute; install the Gateway API first (or tell helm template --api-versions gateway.networking.k8s.io/v1)." -}}
{{- end -}}
{{- if dig "admin" "tls" "client_ca" "" $config -}}
{{- fail "radixgate: config.admin.tls.client_ca would fail every probe, since a kubelet has no client certificate; restrict the admin port by networkPolicy.adminFrom." -}}
{{- end -}}
{{- if dig "admin" "metrics_token" "" $values.config -}}
{{- fail "radixgate: config.admin.metrics_token would appear in a ConfigMap; set metricsToken." -}}
{{- end -}}
{{- if dig "listen" "unix_socket" "" $values.config -}}
{{- fail "radixgate: with config.listen.unix_socket no Service reaches the gateway." -}}
{{- end -}}
{{- range $listener, $name := dict "listen" "tenants" "admin" "admin" -}}
{{- $host := toString (index $config $listener).host -}}
{{- if or (eq $host "localhost") (hasPrefix "127." $host) (eq $host "::1") -}}
{{- fail (printf "radixgate: config.%s.host is %s, which neither Services nor probes reach; leave it out." $listener $host) -}}
{{- end -}}
{{- $files := dig $listener "tls" "certificate" "" $values.config -}}
{{- if and $files (not $gateway.extraVolumeMounts) -}}
{{- fail (printf "radixgate: config.%s.tls.certificate is %s, which no volume has; name a Secret in gateway.tls.%s.existingSecret." $listener $files $name) -}}
{{- end -}}
{{- end -}}
{{- $ports := list (int $config.listen.port) (int $config.admin.port) -}}
{{- if $gateway.endpointPicker.enabled -}}
{{- $ports = append $ports (int $gateway.endpointPicker.port) -}}
{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail (printf "radixgate: two listeners of the gateway have the same port: config.listen.port, config.admin.port and gateway.endpointPicker.port are %s." (join ", " $ports)) -}}
{{- end -}}
{{- with $values.networkPolicy -}}
{{- if and .egress.enabled (not .enabled) -}}
{{- fail "radixgate: networkPolicy.egress.enabled restricts nothing without networkPolicy.enabled." -}}
{{- end -}}
{{- if and .enabled .egress.enabled (not .egress.ports.workers) -}}
{{- range $at, $source := $values.workers.discovery -}}
{{- if not $source.port -}}
{{- fail (printf "radixgate: networkPolicy.egress would keep gateways from the workers of workers.discovery[%d], which names no port: list their ports, and those of their KV events, in networkPolicy.egress.ports.workers." $at) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
