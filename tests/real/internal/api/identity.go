package api

import "encoding/json"

// SelfReviewPath is the path of reviews of the caller.
const SelfReviewPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

// SelfReview asks upstream whom it takes the caller for.
var SelfReview = Request{Method: "POST", Path: SelfReviewPath, Body: `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`}

// ReviewedUser returns what upstream knows of the caller, from the answer to SelfReview.
func ReviewedUser(body string) string {
	var review struct {
		Status struct{ UserInfo json.RawMessage }
	}
	if json.Unmarshal([]byte(body), &review) != nil {
		return body
	}
	return string(review.Status.UserInfo)
}
