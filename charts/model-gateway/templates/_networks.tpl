{{/* The beginning of a NetworkPolicy of a component's pods, up to its rules; as for metadata. */}}
{{- define "gateway.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "gateway.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "gateway.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* The pods of some components, as peers of a rule: (list $ "api" "operator"). */}}
{{- define "gateway.peers" -}}
{{- range rest . }}
- podSelector:
    matchLabels:
      {{- include "gateway.selector" (dict "root" (first $) "component" .) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Names and the Kubernetes API, which no label selects. */}}
{{- define "gateway.kubernetesEgress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range .Values.networkPolicies.kubernetesPorts }}
    - port: {{ . }}
    {{- end }}
{{- end -}}

{{/* Addresses outside, at the ports of moderation providers and sources; no metadata services. */}}
{{- define "gateway.outboundEgress" -}}
- ports:
    {{- range .Values.networkPolicies.outboundPorts }}
    - port: {{ . }}
    {{- end }}
  to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10"]}
    - namespaceSelector: {}
{{- end -}}

{{/* Where the API goes: names, the Kubernetes API, Redis, an S3 store. */}}
{{- define "gateway.egress" -}}
{{ include "gateway.kubernetesEgress" . }}
{{- if .Values.redis.enabled }}
- ports: [{port: redis}]
  to:
    {{- include "gateway.peers" (list $ "redis") | nindent 4 }}
{{- else }}
- ports:
    {{- range .Values.networkPolicies.redisPorts }}
    - port: {{ . }}
    {{- end }}
    {{- $ports := list }}
    {{- range .Values.redis.external.sentinel.addresses }}
    {{- $ports = append $ports (regexFind "[0-9]+$" .) }}
    {{- end }}
    {{- range uniq $ports }}
    - port: {{ . }}
    {{- end }}
{{- end }}
{{- include "gateway.storeEgress" . }}
{{- end -}}

{{- define "gateway.storeEgress" -}}
{{- if eq .Values.store.type "s3" }}
- ports:
    {{- range .Values.networkPolicies.storePorts }}
    - port: {{ . }}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Who reaches the health ports: the pods of all namespaces, unless it is said who. */}}
{{- define "gateway.metricsFrom" -}}
{{- with .Values.networkPolicies.metricsFrom }}
{{- toYaml . }}
{{- else -}}
- namespaceSelector: {}
{{- end }}
{{- end -}}

{{/* An Ingress for a component's Service: (dict "root" $ "component" "api" "values" .Values.api). */}}
{{- define "gateway.ingress" -}}
{{- $service := .values.service -}}
{{- $name := printf "%s-%s" (include "gateway.name" .root) .component -}}
{{- $host := required (printf "%s.ingress.host is needed where its Ingress is enabled" .component) .values.ingress.host -}}
{{- with .values.ingress -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "gateway.metadata" $ | nindent 2 }}
  {{- with .annotations }}
  annotations:
    {{- include "gateway.strings" (list .) | nindent 4 }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . | quote }}
  {{- end }}
  {{- with .tlsSecret }}
  tls:
    - {hosts: [{{ $host | quote }}], secretName: {{ . | quote }}}
  {{- end }}
  rules:
    - host: {{ $host | quote }}
      http:
        paths:
          {{- range .paths }}
          - path: {{ . | quote }}
            pathType: {{ if and (eq . "/") (eq $.component "api") }}Exact{{ else }}Prefix{{ end }}
            backend:
              service: {name: {{ $name }}, port: {number: {{ $service.port }}}}
          {{- end }}
{{- end -}}
{{- end -}}

{{/* The Service for clients, and one for Prometheus: (dict "root" $ "component" "api" "values" .Values.api). */}}
{{- define "gateway.services" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "gateway.metadata" . | nindent 2 }}
  {{- with .values.service.annotations }}
  annotations:
    {{- include "gateway.strings" (list .) | nindent 4 }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  selector:
    {{- include "gateway.selector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ .values.service.port }}, targetPort: http}
---
# for Prometheus; always without an address of its own, whatever the Service above is
apiVersion: v1
kind: Service
metadata:
  {{- include "gateway.metadata" (merge (dict "suffix" (printf "%s-health" .component)) .) | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "gateway.selector" . | nindent 4 }}
  ports:
    - {name: health, port: 8082, targetPort: health}
{{- end -}}
