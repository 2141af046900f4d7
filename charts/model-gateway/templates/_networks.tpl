{{/* Where the API goes: names, the Kubernetes API (no label selects it), Redis, an S3 store. */}}
{{- define "gateway.egress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range .Values.networkPolicies.kubernetesPorts }}
    - port: {{ . }}
    {{- end }}
{{- if .Values.redis.enabled }}
- ports: [{port: redis}]
  to:
    - podSelector:
        matchLabels:
          {{- include "gateway.selector" (dict "root" $ "component" "redis") | nindent 10 }}
{{- else }}
- ports:
    {{- range .Values.networkPolicies.redisPorts }}
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
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .tlsSecret }}
  tls:
    - {hosts: [{{ $host }}], secretName: {{ . }}}
  {{- end }}
  rules:
    - host: {{ $host }}
      http:
        paths:
          {{- range .paths }}
          - path: {{ . }}
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
    {{- toYaml . | nindent 4 }}
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
