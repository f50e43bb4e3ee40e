package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/surefoot-mq/surefoot/resilience/httpclient"
)

// Client asks the catalog. It is safe for concurrent use.
type Client struct {
	base string
	http *httpclient.Client
}

// NewClient returns a client for the catalog at a URL.
func NewClient(base string, client *httpclient.Client) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: client}
}

// Items returns those of the items that exist, by SKU.
func (c *Client) Items(ctx context.Context, skus []string) (map[string]Item, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/items?"+url.Values{"sku": skus}.Encode(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask catalog: %w", err)
	}
	var got answer
	if err := c.http.JSON(r, &got); err != nil {
		return nil, fmt.Errorf("ask catalog: %w", err)
	}
	if got.Items == nil {
		return nil, errors.New("ask catalog: the answer is about something else")
	}
	items := make(map[string]Item, len(got.Items))
	for _, item := range got.Items {
		items[item.SKU] = item
	}
	return items, nil
}
